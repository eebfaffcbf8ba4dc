"""The part of the library that serves the Snakemake workflow; imports neither Snakemake nor PyTorch.

`layout` has every path, `plan` answers the rules (files, settings, fingerprints), `stages` has one function per rule,
and `job` runs it. No result depends on this code, except on the stage that makes it.
"""
