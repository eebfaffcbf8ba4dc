"""`python -m recaps`: the library's stages without a workflow, e.g. on a machine that has PyTorch but no Snakemake."""

from recaps.cli import main

raise SystemExit(main())
