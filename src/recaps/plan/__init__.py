"""The part of the library that serves the Snakemake workflow; imports neither Snakemake nor PyTorch.

`layout` has every path, `plan` answers the rules (files, settings, identities), `stages` has one function per rule, and
`job` runs it. `receipts` tell what made a result, and `state` compares them with the plan. No number depends on this
code.
"""
