"""The project's own record: what is kept in git of a finished scale, a few MB without weights.

`python -m recaps.report.publish --scale desk` copies from `results/desk` to `results/published/desk`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from recaps.errors import UserError
from recaps.io import write_json
from recaps.report.charts import thin
from recaps.report.measured import dirty, read_metrics, read_records, stand_in

#: A figure's data is kept up to this size.
MOST_DATA = 200_000
#: Rows kept of a run's history.
MOST_ROWS = 200
#: Everything together.
MOST_BYTES = 10_000_000

MANIFEST = "MANIFEST.json"
SCORECARD = ("scorecard.csv", "scorecard.md")
OF_PAPER = (".csv", ".md", ".png")
OF_RUN = ("record.json", "config.json", "history.csv", "heads/*.json")


def publish(results: Path, published: Path, *, allow_dirty: bool = False) -> dict[str, Any]:
    """Replace the folder `published` by the record of the finished scale in `results`; return its manifest.

    Raises:
        UserError: the run is unfinished, made of stand-ins, made from uncommitted changes, or too large; `published`
            is then as it was.
    """
    results, published = Path(results), Path(published)
    commits, is_dirty = _check(results, allow_dirty)
    building = published.parent / f".{published.name}.{os.getpid()}.part"
    try:
        building.mkdir(parents=True)
        left_out = [path for path in _files(results) if not _copy(results, building, path)]
        manifest = {
            "scale": results.name,
            "commits": commits,
            "dirty": is_dirty,
            "left_out": [str(path) for path in left_out],
            "files": {
                path.relative_to(building).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
                for path in sorted(building.rglob("*"))
                if path.is_file()
            },
        }
        write_json(building / MANIFEST, manifest)
        _check_size(building)
        _swap(building, published)
    except OSError as error:
        raise UserError(f"{published}: cannot be written ({error.strerror}); it is as it was") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return manifest


def _check(results: Path, allow_dirty: bool) -> tuple[list[str], bool]:
    """Refuse what must not be published; return the commits of the runs and whether any was dirty."""
    finish = f"finish it first: snakemake --profile profiles/local --config scale={results.name}"
    metrics_files = sorted(results.glob("papers/*/metrics.csv"))
    if not metrics_files or not all((results / name).exists() for name in SCORECARD):
        raise UserError(f"{results}: no finished run (scorecard or metrics are missing); {finish}")
    for folder in sorted(results.glob("runs/*/*/seed-*")):
        if not (folder / "record.json").exists():
            raise UserError(f"{folder}: an unfinished run; {finish}")
    records = read_records(sorted(results.glob("runs/*/*/seed-*/record.json")))
    metrics = read_metrics(metrics_files)
    known = {(run["paper"], run["variant"], int(run["seed"])) for run in records}
    for row in metrics[["paper", "variant", "seed"]].drop_duplicates().itertuples(index=False):
        if tuple(row) not in known:
            raise UserError(f"{results}: metrics of {row[0]}/{row[1]}, seed {row[2]}, have no run record; {finish}")
    if stand_in(records) or metrics["stand_in"].any():
        raise UserError(f"{results}: made of stand-in data, which is never published; run a scale with official data")
    is_dirty = dirty(records)
    if is_dirty and not allow_dirty:
        raise UserError(
            f"{results}: made from uncommitted changes; commit and run again, or publish with --allow-dirty"
        )
    return sorted({str(run.get("git", {}).get("commit")) for run in records}), is_dirty


def _files(results: Path) -> Iterator[Path]:
    """Paths, relative to `results`, of what the record is made of."""
    yield from (Path(name) for name in SCORECARD)
    for path in sorted(results.glob("papers/*/*")):
        if path.suffix in OF_PAPER:
            yield path.relative_to(results)
    for pattern in OF_RUN:
        for path in sorted(results.glob(f"runs/*/*/seed-*/{pattern}")):
            yield path.relative_to(results)


def _copy(results: Path, building: Path, path: Path) -> bool:
    """Copy one file, thinning a history; a figure's data that is too large stays out (False)."""
    source, target = results / path, building / path
    is_data = path.suffix == ".csv" and path.name not in ("metrics.csv", "history.csv", *SCORECARD)
    if is_data and source.stat().st_size > MOST_DATA:
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.name == "history.csv":
        header, *rows = source.read_text(encoding="utf-8").splitlines()
        kept = [rows[place] for place in thin(range(len(rows)), MOST_ROWS)]
        target.write_text("\n".join([header, *kept]) + "\n", encoding="utf-8")
    else:
        shutil.copyfile(source, target)
    return True


def _check_size(folder: Path) -> None:
    total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if total > MOST_BYTES:
        raise UserError(
            f"{folder.name}: {total / 1e6:.1f} MB, more than the {MOST_BYTES / 1e6:.0f} MB that git should keep; "
            "draw the figures at a lower resolution"
        )


def _swap(new: Path, old: Path) -> None:
    """Put `new` where `old` is; `old` comes back if that fails."""
    if not old.exists():
        os.replace(new, old)
        return
    aside = new.with_suffix(".old")
    os.replace(old, aside)
    try:
        os.replace(new, old)
    except OSError:
        os.replace(aside, old)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m recaps.report.publish", description="Keep a finished scale in git."
    )
    parser.add_argument("--scale", required=True, help="the finished scale, e.g. desk")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of results (default: results)")
    parser.add_argument("--allow-dirty", action="store_true", help="also publish runs of uncommitted code, and say so")
    options = parser.parse_args(arguments)
    target = options.results / "published" / options.scale
    try:
        manifest = publish(options.results / options.scale, target, allow_dirty=options.allow_dirty)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{target}: {len(manifest['files'])} files, {len(manifest['left_out'])} large data files left out")
    return 0


if __name__ == "__main__":
    sys.exit(main())
