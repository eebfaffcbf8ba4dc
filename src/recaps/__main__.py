"""`python -m recaps`: list and run variants without Snakemake, and add a paper or a routing."""

import sys
from importlib.util import find_spec

#: Packages that trainings and records need, on any machine.
NEEDED = [
    "llvmlite",
    "numba",
    "numpy",
    "pandas",
    "psutil",
    "pydantic",
    "safetensors",
    "scipy",
    "sklearn",
    "torch",
    "yaml",
]

if missing := [name for name in NEEDED if find_spec(name) is None]:
    sys.exit(f"recaps: this Python lacks {', '.join(missing)}; install them (versions: envs/requirements.lock)")

from recaps.cli import main  # noqa: E402

raise SystemExit(main())
