"""What the Snakemake workflow asks of the library; imports neither Snakemake nor PyTorch.

`plan` answers the rules (which files, which settings), `job` runs a script's one function. No result depends on either.
"""
