"""Versions of the official files in `data.dvc`.

python workflow/data_version.py smallnorb cifar10     write the versions of these sets in data/ to data.dvc

`dvc commit data.dvc` handles only all data sets at once, and fails if one has not been fetched.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from recaps.datasets.checksums import require
from recaps.datasets.sources import files
from recaps.errors import UserError

FILE = Path("data.dvc")
CACHE = Path(".dvc/cache/files/md5")


def keep() -> None:
    """Copy the files that `data.dvc` names to DVC's cache if they have exactly that content; change nothing else.

    Then `dvc status` is clean for data that have just been fetched, and `dvc push` includes them.
    """
    if not FILE.exists() or not Path(".dvc").is_dir():
        return
    if any(Path(out["path"]).exists() and not _is_kept(out.get("md5", "")) for out in _listed()):
        try:
            with _stage() as stage:
                for out in stage.outs:
                    if out.exists and out.hash_info and not out.changed_checksum():
                        out.save()
                        out.commit()
        except Exception as error:  # such as a full disk, or another DVC process: keep the finished run
            print(f"recaps: the fetched data are not in DVC's cache yet: {error}", file=sys.stderr)


def name(sets: Sequence[str]) -> None:
    """Write the versions of these data sets in `data/` to `data.dvc`, and copy them to DVC's cache.

    All files must be there and have the official checksums.
    """
    try:
        for source in (source for each in sets for source in files(each)):
            require(source, Path("data", source.dataset))
    except UserError as error:
        sys.exit(f"recaps: {error}")
    paths = [f"data/{each}" for each in sets]
    listed = {out["path"] for out in _listed()}
    with FILE.open("a", encoding="utf-8") as file:
        file.writelines(f"- path: {path}\n" for path in paths if path not in listed)
    with _stage() as stage:
        for out in (out for out in stage.outs if out.def_path in paths):
            out.save()
            out.commit()
        stage.dump(update_lock=False)


def _listed() -> list[dict[str, Any]]:
    outs: list[dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))["outs"]
    return outs


def _is_kept(digest: str) -> bool:
    """Look in the default place only: a miss just costs the start of DVC."""
    return (CACHE / digest[:2] / digest[2:]).exists()


@contextmanager
def _stage() -> Iterator[Any]:
    from dvc.repo import Repo

    with Repo() as repo, repo.lock:
        (stage,) = repo.stage.load_all(str(FILE))
        yield stage


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the versions of data sets to data.dvc.")
    parser.add_argument("sets", nargs="+", help="folders of data/, e.g. smallnorb")
    name(parser.parse_args().sets)
