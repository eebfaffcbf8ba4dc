"""The official files and `data.dvc`, which names a version of each data set.

python workflow/data_version.py smallnorb cifar10     name the versions of these sets as they lie in data/

`dvc commit data.dvc` does it only for all data sets at once, and is refused where one has not been fetched.
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
    """Put into DVC's cache what `data.dvc` names, where the very bytes lie in their place; all else is left as it is.

    Then `dvc status` is clean for data that have just been fetched, and `dvc push` has them.
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
        except Exception as error:  # such as a full disk, or another DVC at work; no reason to lose a finished run
            print(f"recaps: the fetched data are not in DVC's cache yet: {error}", file=sys.stderr)


def name(sets: Sequence[str]) -> None:
    """Write the versions of these data sets, as they lie in `data/`, into `data.dvc`, and keep them in DVC's cache.

    They must be whole, and what the official checksums say.
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
    """By a look at the default place: a miss costs no more than DVC's start."""
    return (CACHE / digest[:2] / digest[2:]).exists()


@contextmanager
def _stage() -> Iterator[Any]:
    from dvc.repo import Repo

    with Repo() as repo, repo.lock:
        (stage,) = repo.stage.load_all(str(FILE))
        yield stage


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Name the versions of data sets in data.dvc.")
    parser.add_argument("sets", nargs="+", help="folders of data/, e.g. smallnorb")
    name(parser.parse_args().sets)
