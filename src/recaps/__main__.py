"""`python -m recaps`: list and run variants without Snakemake, and add a paper or a routing."""

from recaps.cli import main

raise SystemExit(main())
