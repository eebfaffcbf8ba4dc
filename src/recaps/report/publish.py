"""The project's own record: what is kept in git of finished papers, a few MB for each scale, without weights.

`python -m recaps.report.publish --scale desk` copies the papers in `results/desk` to `results/published/desk`; with
`--papers discriminative` that one alone. The record of other papers stays as it is, so that papers can be run and
published one after the other and on different machines. The published scorecard is computed anew from the published
metrics and run records of all of them.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from recaps.config.load import load
from recaps.config.variant import Paper
from recaps.errors import UserError, nearest
from recaps.io import read_json, write_json
from recaps.report import scorecard
from recaps.report.charts import thin
from recaps.report.measured import Record, dirty, finished_papers, read_metrics, read_records, stand_in

#: A figure's data is kept up to this size.
MOST_DATA = 200_000
#: Rows kept of a run's history, besides those with a test error.
MOST_ROWS = 200
#: Everything together.
MOST_BYTES = 10_000_000

MANIFEST = "MANIFEST.json"
OF_PAPER = ("*.csv", "*.md", "*.png", "timings/*.json")
OF_RUN = ("record.json", "config.json", "history.csv", "heads/*.json")


def publish(
    results: Path, published: Path, config: Path, *, papers: Sequence[str] = (), allow_dirty: bool = False
) -> dict[str, Any]:
    """Replace the record of `papers` in the folder `published` by that of the finished ones in `results`.

    Args:
        results: the folder of a scale.
        config: the folder of the configuration: what makes a paper complete, and the claims for the scorecard.
        papers: all that are in `results` where none are named.

    Returns:
        The manifest: commits of every paper, what was left out, and the checksum of every file.

    Raises:
        UserError: a paper is unfinished, made of stand-ins, made from uncommitted changes, or too large; `published`
            is then as it was.
    """
    results, published = Path(results), Path(published)
    chosen = _choose(results, papers)
    settings = load({"scale": results.name, "papers": chosen}, config).papers
    for name in chosen:
        _check(results, name, settings[name], allow_dirty)
    building = published.parent / f".{published.name}.{os.getpid()}.part"
    try:
        building.mkdir(parents=True)
        left_out = _keep(published, building, chosen)
        left_out += [path.as_posix() for path in _files(results, chosen) if not _copy(results, building, path)]
        manifest = _complete(building, config, results.name, left_out)
        _check_size(building)
        _swap(building, published)
    except OSError as error:
        raise UserError(f"{published}: cannot be written ({error.strerror}); it is as it was") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return manifest


def _choose(results: Path, papers: Sequence[str]) -> list[str]:
    """The papers to publish; those that are named must be in `results`."""
    there = finished_papers(results)
    if not there:
        raise UserError(f"{results}: no finished paper (no papers/*/metrics.csv); {_finish(results)}")
    for name in papers:
        if name not in there:
            raise UserError(f"{results}: no finished paper '{name}'{nearest(name, there)}; {_finish(results)}")
    return [name for name in there if name in (papers or there)]


def _finish(results: Path) -> str:
    return f"finish it first: snakemake --profile profiles/local --config scale={results.name}"


def _check(results: Path, name: str, paper: Paper, allow_dirty: bool) -> None:
    """Refuse a paper that must not be published."""
    folder = results / "papers" / name
    for output in paper.outputs:
        if not (folder / f"{output}.csv").exists():
            raise UserError(f"{folder / output}.csv: not made yet; {_finish(results)}")
    for run in sorted(results.glob(f"runs/{name}/*/seed-*")):
        if not (run / "record.json").exists():
            raise UserError(f"{run}: an unfinished run; {_finish(results)}")
    records = _records(results, name)
    metrics = read_metrics([folder / "metrics.csv"])
    known = {(run["variant"], int(run["seed"])) for run in records}
    for variant, seed in metrics[["variant", "seed"]].drop_duplicates().itertuples(index=False):
        if (variant, seed) not in known:
            raise UserError(
                f"{results}: metrics of {name}/{variant}, seed {seed}, have no run record; {_finish(results)}"
            )
    if stand_in(records) or metrics["stand_in"].any():
        raise UserError(f"{folder}: made of stand-in data, which is never published; run a scale with official data")
    if dirty([*records, *_timings(results, name)]) and not allow_dirty:
        raise UserError(f"{folder}: made from uncommitted changes; commit and run again, or publish with --allow-dirty")


def _records(folder: Path, paper: str) -> list[Record]:
    return [*read_records(sorted(folder.glob(f"runs/{paper}/*/seed-*/record.json")))]


def _timings(folder: Path, paper: str) -> list[Record]:
    return [read_json(file) for file in sorted(folder.glob(f"papers/{paper}/timings/*.json"))]


def _keep(published: Path, building: Path, chosen: Sequence[str]) -> list[str]:
    """Copy the record of all papers but the chosen; return what had been left out of it."""
    kept = [name for name in finished_papers(published) if name not in chosen]
    for name in kept:
        for folder in (f"papers/{name}", f"runs/{name}"):
            shutil.copytree(published / folder, building / folder)
    before = read_json(published / MANIFEST)["left_out"] if kept else []
    return [path for path in before if path.split("/")[1] in kept]


def _files(results: Path, papers: Sequence[str]) -> Iterator[Path]:
    """Paths, relative to `results`, of what the record of papers is made of."""
    for paper in papers:
        for folder, patterns in ((f"papers/{paper}", OF_PAPER), (f"runs/{paper}/*/seed-*", OF_RUN)):
            for pattern in patterns:
                for path in sorted(results.glob(f"{folder}/{pattern}")):
                    yield path.relative_to(results)


def _copy(results: Path, building: Path, path: Path) -> bool:
    """Copy one file, thinning a history; a figure's data that is too large stays out (False)."""
    source, target = results / path, building / path
    is_data = path.suffix == ".csv" and path.name not in ("metrics.csv", "history.csv")
    if is_data and source.stat().st_size > MOST_DATA:
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.name == "history.csv":
        header, *rows = source.read_text(encoding="utf-8").splitlines()
        kept = [header, *(rows[place] for place in _kept_rows([header, *rows]))]
        target.write_text("\n".join(kept) + "\n", encoding="utf-8")
    else:
        shutil.copyfile(source, target)
    return True


def _kept_rows(lines: Sequence[str]) -> list[int]:
    """Positions of the rows of a history that are kept: some, evenly spread, and all with a test error."""
    rows = list(csv.DictReader(lines))
    tested = {place for place, row in enumerate(rows) if row.get("test_error")}
    return sorted(tested.union(thin(range(len(rows)), MOST_ROWS)))


def _complete(building: Path, config: Path, scale: str, left_out: list[str]) -> dict[str, Any]:
    """Write the scorecard of all papers, and the manifest, which is returned."""
    papers = finished_papers(building)
    made = {name: [*_records(building, name), *_timings(building, name)] for name in papers}
    scorecard.make(
        config / "claims.yaml",
        [building / "papers" / name / "metrics.csv" for name in papers],
        sorted(building.glob("runs/*/*/seed-*/record.json")),
        building,
        scale=scale,
        papers=papers,
    )
    manifest = {
        "scale": scale,
        "papers": {
            name: {"commits": sorted({str(each.get("git", {}).get("commit")) for each in all_}), "dirty": dirty(all_)}
            for name, all_ in made.items()
        },
        "left_out": sorted(left_out),
        "files": {
            path.relative_to(building).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(building.rglob("*"))
            if path.is_file()
        },
    }
    write_json(building / MANIFEST, manifest)
    return manifest


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
    parser = argparse.ArgumentParser(prog="python -m recaps.report.publish", description="Keep finished papers in git.")
    parser.add_argument("--scale", required=True, help="the scale they were run at, e.g. desk")
    parser.add_argument("--papers", nargs="+", default=(), help="only these (default: all that are there)")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of results (default: results)")
    parser.add_argument("--config", type=Path, default=Path("config"), help="folder of the configuration")
    parser.add_argument("--allow-dirty", action="store_true", help="also publish runs of uncommitted code, and say so")
    options = parser.parse_args(arguments)
    target = options.results / "published" / options.scale
    try:
        manifest = publish(
            options.results / options.scale,
            target,
            options.config,
            papers=options.papers,
            allow_dirty=options.allow_dirty,
        )
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(
        f"{target}: {', '.join(manifest['papers'])}; {len(manifest['files'])} files, "
        f"{len(manifest['left_out'])} large data files left out"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
