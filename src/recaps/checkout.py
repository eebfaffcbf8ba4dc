"""The code that runs is that of the checkout that it runs in, so that records name the right commit."""

from __future__ import annotations

import os
from pathlib import Path

import recaps
from recaps.errors import UserError


def require(root: Path, program: str) -> None:
    """Check that Python imports this library from the checkout `root`; `program` is what the user runs there.

    Raises:
        UserError: Python imports it from another folder.
    """
    imported, own = Path(recaps.__file__).resolve().parent, (root / "src" / "recaps").resolve()
    if imported == own:
        return
    mend = (
        f"run `make environment` in {root.resolve()} (delete a `.venv` that was copied there first) and use its "
        f".venv/bin/{program}"
    )
    paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    if imported.parent in [Path(path).resolve() for path in paths]:
        mend = "PYTHONPATH names that folder; unset it"
    raise UserError(f"{own}: this code would not run, as Python imports recaps from {imported}; {mend}")
