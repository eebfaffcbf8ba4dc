"""`python -m recaps`: the library's stages without a workflow, e.g. on a machine that has PyTorch but no Snakemake."""

import os
import sys

from recaps.cli import main

try:
    status = main()
    sys.stdout.flush()
except BrokenPipeError:  # who reads has seen enough, as in `python -m recaps list | head`
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains as it leaves
    status = 1
raise SystemExit(status)
