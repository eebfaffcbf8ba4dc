"""Versions of the official files in `data.dvc`, written when a run ends, or by `python workflow/data_version.py`.

`dvc commit data.dvc` handles only all data sets at once, and fails if one has not been fetched.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

FILE = Path("data.dvc")
CACHE = Path(".dvc/cache/files/md5")


def keep() -> None:
    """Copy the fetched sets that `data.dvc` names to DVC's cache if they have exactly that content.

    A set without a version, as a user adds it, gets its version. Then `dvc status` is clean, and `dvc push` includes
    them.
    """
    if not FILE.exists() or not Path(".dvc").is_dir():
        return
    outs = yaml.safe_load(FILE.read_text(encoding="utf-8"))["outs"]
    if any(Path(out["path"]).exists() and not _is_kept(out.get("md5", "")) for out in outs):
        try:
            _commit()
        except Exception as error:  # such as a full disk, or another DVC process: keep the finished run
            print(f"recaps: the fetched data are not in DVC's cache yet: {error}", file=sys.stderr)


def _is_kept(digest: str) -> bool:
    """Look in the default place only: a miss just costs the start of DVC."""
    return bool(digest) and (CACHE / digest[:2] / digest[2:]).exists()


def _commit() -> None:
    from dvc.repo import Repo

    with Repo() as repo, repo.lock:
        (stage,) = repo.stage.load_all(str(FILE))
        there: list[Any] = [out for out in stage.outs if out.exists]
        new = [out for out in there if not out.hash_info]
        for out in there:
            if out in new or not out.changed_checksum():
                out.save()
                out.commit()
        if new:
            stage.dump(update_lock=False)


if __name__ == "__main__":
    keep()
