"""The published record: what git keeps of finished papers, a few MB per scale, without weights.

`python -m recaps.report.publish --scale desk` copies all finished papers of `results/desk` to `results/published/desk`,
and writes the report there as `index.html`, with links to the pictures and records beside it; `--papers discriminative`
copies one. The record of the other papers does not change, so papers can be run and published one at a time and on
different machines. `--add` also keeps the published runs of the same paper that have other seeds or are of other
variants, and draws its tables and figures from all. Figures that need what the record lacks (weights, latents, probes)
stay as they were; the manifest names those that lack new runs. The published scorecard is recomputed from the published
metrics and run records of all papers. If a run left out a data set, name the set with `--without`; the record then
names it too.

`--rescore` publishes nothing: it computes the published scorecard again, by the claims of today.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from recaps.command import command
from recaps.config.load import Project, load
from recaps.config.variant import Paper
from recaps.config.without import LeftOut
from recaps.datasets import catalogue
from recaps.errors import UserError, nearest
from recaps.io import digest_of, read_json, write_json
from recaps.papers import FOLDER
from recaps.report import html, scorecard
from recaps.report.charts import thin
from recaps.report.measured import (
    METRICS,
    Record,
    dirty,
    finished_papers,
    head_results,
    measured_seeds,
    read_metrics,
    read_records,
    stand_in,
)
from recaps.report.merge import merge
from recaps.workflow.layout import METRICS_FILES, Layout

#: Bytes: a larger data file of a figure is left out.
MOST_DATA = 200_000
#: Added to the caption of a figure that was not drawn again when runs that it shows were published.
OLDER = "This picture does not show the newest runs."
#: Rows kept of a run's history, besides its first tenth and the rows with a test error.
MOST_ROWS = 100
#: Bytes of the whole record of a scale.
MOST_BYTES = 10_000_000

MANIFEST = "MANIFEST.json"
PAGE = "index.html"
OF_OUTPUT = (".csv", ".md", ".png")
OF_RUN = ("record.json", "config.json", "history.csv", "scores.json", "heads.json")
#: Paths relative to the folder of a scale.
FILES = Layout(Path())


def publish(
    results: Path,
    published: Path,
    config: Path,
    *,
    papers: Sequence[str] = (),
    without: Sequence[str] = (),
    add: bool = False,
    allow_dirty: bool = False,
) -> dict[str, Any]:
    """Replace the record of `papers` in the folder `published` by their results in the folder `results`.

    Args:
        results: the folder of a scale.
        config: the folder that holds `scales/`.
        papers: the papers to publish; all finished ones if empty.
        without: data sets and variants that the run left out.
        add: whether to keep the published runs of other seeds and variants.

    Returns:
        The manifest: commits and left-out data sets of every paper, large files left out, and the checksum of every
        file.

    Raises:
        UserError: a paper is unfinished, uses stand-in data or uncommitted changes, or is too large; or a run that
            `add` keeps has other settings or was measured otherwise. `published` is then unchanged.
    """
    results, published = Path(results), Path(published)
    chosen = _choose(results, papers)
    folders = [published, results] if add else [results]
    used = {key: other for name in chosen for key, other in _datasets(folders, results.name, name, config).items()}
    project = load({"scale": results.name, "papers": chosen, "without": without, "datasets": used}, config)
    with tempfile.TemporaryDirectory() as merged, _replacing(published) as building:
        sources = {name: Path(merged, name, results.name) if add else results for name in chosen}
        too_large, lost, older = _keep(published, building, chosen)
        before = _older(published, chosen)
        for name, paper in project.papers.items():
            if add:
                older[name] = merge(results, published, name, project, sources[name], before.get(name, ()))
            _check(sources[name], name, paper, project.left_out.get(name), allow_dirty)
        for name, paper in project.papers.items():
            files = _files(sources[name], name, paper)
            too_large += [path.as_posix() for path in files if not _copy(sources[name], building, path)]
        manifest = _complete(building, results.name, config, too_large, lost | project.left_out, older)
        _check_size(building)
    return manifest


def rescore(published: Path, config: Path) -> dict[str, Any]:
    """Judge the papers in the record again, by the claims of today. Results stay as they are. Return the manifest.

    `config` is the folder that holds `scales/`.
    """
    if not finished_papers(published):
        raise UserError(f"{published}: no published paper")
    with _replacing(published) as building:
        too_large, lost, older = _keep(published, building, ())
        return _complete(building, published.name, config, too_large, lost, older)


@contextmanager
def _replacing(published: Path) -> Iterator[Path]:
    """Yield a new folder, which replaces `published` if the block succeeds."""
    building = published.parent / f".{published.name}.{os.getpid()}.part"
    try:
        building.mkdir(parents=True)
        yield building
        _swap(building, published)
    except OSError as error:
        raise UserError(f"{published}: cannot be written ({error.strerror or error}); it is unchanged") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _choose(results: Path, papers: Sequence[str]) -> list[str]:
    """The papers to publish; every named one must be finished."""
    there = finished_papers(results)
    if not there:
        raise UserError(f"{results}: no finished paper (no {METRICS}); {_finish(results)}")
    for name in papers:
        if name not in there:
            raise UserError(f"{results}: no finished paper '{name}'{nearest(name, there)}; {_finish(results)}")
    return [name for name in there if name in (papers or there)]


def _finish(results: Path) -> str:
    return f"finish it first: snakemake --profile profiles/local --config scale={results.name}"


def _check(results: Path, name: str, paper: Paper, left_out: LeftOut | None, allow_dirty: bool) -> None:
    """Raise a UserError if a paper must not be published."""
    files = Layout(results)
    folder = files.paper(name)
    for variant in paper.variants:
        if not _runs(files, name, [variant]):
            how = f"if it was left out, name it or its data set with --without; otherwise {_finish(results)}"
            raise UserError(f"{results}: no run of {name}/{variant}; {how}")
    for file in _drawn(files, name, paper):
        if file.suffix == ".csv" and not file.exists():
            raise UserError(f"{file}: not made yet; {_finish(results)}")
    for variant in measured_seeds(files.metrics(name)[0]):
        if left_out and variant in left_out.variants:
            what = ", ".join(left_out.variants[variant]) or "it"
            raise UserError(f"{folder}: contains metrics of {variant}; publish it with {what}, or run again without")
    runs = _runs(files, name, paper.variants)
    for run in runs:
        if not (run / "record.json").exists():
            raise UserError(f"{run}: in the metrics of {name}, but not a finished run; {_finish(results)}")
    records = read_records(run / "record.json" for run in runs)
    metrics = read_metrics(files.metrics(name)[:1])
    if stand_in(records) or metrics["stand_in"].any():
        raise UserError(f"{folder}: made from stand-in data, which is never published; run a scale with official data")
    own = sorted({run["dataset"]["own"] for run in records if run.get("dataset", {}).get("own")})
    if own:
        raise UserError(f"{folder}: made from your own data ({', '.join(own)}), which are never published")
    timings = [read_json(files.timing(name, timing)) for timing in paper.timings]
    if dirty([*records, *timings]) and not allow_dirty:
        raise UserError(f"{folder}: made from uncommitted changes; commit and run again, or publish with --allow-dirty")


def _runs(files: Layout, name: str, variants: Iterable[str]) -> list[Path]:
    """The folders of the runs of some variants that the paper's metrics contain."""
    seeds = measured_seeds(files.metrics(name)[0])
    return [files.run(name, variant, seed) for variant in variants for seed in seeds.get(variant, ())]


def _drawn(files: Layout, name: str, paper: Paper) -> list[Path]:
    """The files of a paper's tables and figures."""
    tables = (file for table in paper.tables for file in files.table(name, table))
    return [*tables, *(file for figure in paper.figures for file in files.figure(name, figure))]


def _keep(
    published: Path, building: Path, chosen: Sequence[str]
) -> tuple[list[str], dict[str, LeftOut], dict[str, list[str]]]:
    """Copy the record of all papers except the chosen.

    Returns:
        Its large files left out, its left-out data sets and variants, and its older figures.
    """
    kept = [name for name in finished_papers(published) if name not in chosen]
    for name in kept:
        for folder in (FILES.paper(name), FILES.runs(name)):
            shutil.copytree(published / folder, building / folder)
    before = read_json(published / MANIFEST) if kept else {"left_out": []}
    about = {name: each for name, each in before.get("papers", {}).items() if name in kept}
    lost = {name: LeftOut.model_validate(each["without"]) for name, each in about.items() if "without" in each}
    too_large = [path for path in before["left_out"] if path.split("/")[1] in kept]
    return too_large, lost, _older(published, kept)


def _older(published: Path, names: Iterable[str]) -> dict[str, list[str]]:
    """The figures of some papers that lack runs of the record."""
    manifest = published / MANIFEST
    about = read_json(manifest).get("papers", {}) if manifest.exists() else {}
    return {name: older for name in names if (older := about.get(name, {}).get("older_figures"))}


def _files(results: Path, name: str, paper: Paper) -> Iterator[Path]:
    """Paths, relative to `results`, of the files in a paper's record."""
    layout = Layout(results)
    files = layout.metrics(name)[:1]
    files += [file for file in _drawn(layout, name, paper) if file.suffix in OF_OUTPUT]
    files += [layout.timing(name, timing) for timing in paper.timings]
    files += [run / file for run in _runs(layout, name, paper.variants) for file in OF_RUN]
    return (file.relative_to(results) for file in files if file.exists())


def _copy(results: Path, building: Path, path: Path) -> bool:
    """Copy one file; thin and round a history. Return False for a data file that is too large, which is left out."""
    source, target = results / path, building / path
    is_data = path.suffix == ".csv" and path.name not in (METRICS_FILES[0], "history.csv")
    if is_data and source.stat().st_size > MOST_DATA:
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.name == "history.csv":
        history = pd.read_csv(source)
        history.iloc[_kept_rows(history)].to_csv(target, index=False, float_format="%.6g")
    else:
        shutil.copyfile(source, target)
    return True


def _kept_rows(history: pd.DataFrame) -> list[int]:
    """Positions of the rows of a history to keep.

    These are the first tenth of the steps, which metrics of early training need, all rows that have a test error, and
    some of the others, evenly spread. A history that has been thinned stays as it is.
    """
    whole = history["step"] <= history["step"].max() / 10
    if "test_error" in history:
        whole |= history["test_error"].notna()
    kept, others = (np.flatnonzero(each).tolist() for each in (whole, ~whole))
    return sorted([*kept, *thin(others, MOST_ROWS)])


def _complete(
    building: Path,
    scale: str,
    config: Path,
    too_large: list[str],
    left_out: Mapping[str, LeftOut],
    older: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """Write the scorecard of all papers, the page and the manifest; return the manifest."""
    papers = finished_papers(building)
    files = Layout(building)
    scorecard.make(
        [FOLDER / name / "claims.yaml" for name in papers],
        [files.metrics(name)[0] for name in papers],
        _records(building, "*"),
        building,
        scale=scale,
        papers=papers,
        left_out=left_out,
    )
    project = _project(building, scale, config, {name: _names(left_out.get(name)) for name in papers})
    html.build(
        project.model_copy(update={"papers": {n: _marked(p, older.get(n, ())) for n, p in project.papers.items()}}),
        building,
        building / PAGE,
        linked=True,
    )
    manifest = {
        "scale": scale,
        "papers": {name: _about(files, name, left_out.get(name), older.get(name, ())) for name in papers},
        "left_out": sorted(too_large),
        "files": {
            path.relative_to(building).as_posix(): digest_of(path)
            for path in sorted(building.rglob("*"))
            if path.is_file()
        },
    }
    write_json(building / MANIFEST, manifest)
    return manifest


def _marked(paper: Paper, older: Collection[str]) -> Paper:
    """The paper with captions that say which figures lack newer runs."""
    figures = {
        name: figure.model_copy(update={"caption": f"{figure.caption} {OLDER}"}) if name in older else figure
        for name, figure in paper.figures.items()
    }
    return paper.model_copy(update={"figures": figures})


def _project(folder: Path, scale: str, config: Path, without: Mapping[str, Sequence[str]]) -> Project:
    """Return the configuration of the runs in a folder: their data sets and seeds.

    Args:
        without: the papers, each with the data sets and variants that it leaves out.
    """
    projects = []
    for name, lost in without.items():
        used = _datasets([folder], scale, name, config)
        projects.append(load({"scale": scale, "papers": [name], "datasets": used, "without": lost}, config))
    trained = [measured_seeds(Layout(folder).metrics(name)[0]).values() for name in without]
    seeds = {seed for paper in trained for each in paper for seed in each}
    merged = {
        "papers": {name: paper for each in projects for name, paper in each.papers.items()},
        "left_out": {name: lost for each in projects for name, lost in each.left_out.items()},
        "config": projects[0].config.model_copy(
            update={
                "datasets": {name: other for each in projects for name, other in each.config.datasets.items()},
                "seeds": tuple(sorted(seeds)) or None,
            }
        ),
    }
    return projects[0].model_copy(update=merged)


def _datasets(folders: Iterable[Path], scale: str, name: str, config: Path) -> dict[str, str]:
    """The data sets that the runs of a paper were trained and tested on in place of those that the scale plans.

    If the runs of two folders used different sets in place of one, the later folder counts.
    """
    plain = load({"scale": scale, "papers": [name]}, config)
    used: dict[str, str] = {}
    for files in map(Layout, folders):
        pairs = list(_used(files, name, plain.papers[name]))
        used |= {planned: plain.dataset(planned) for planned, _ in pairs}
        used |= {planned: other for planned, other in pairs if plain.dataset(planned) != other}
    return {name: other for name, other in used.items() if plain.dataset(name) != other and other in catalogue.names()}


def _used(files: Layout, name: str, paper: Paper) -> Iterator[tuple[str, str]]:
    """The data sets that the runs of a paper should use, each with the one that was used."""
    for run in _runs(files, name, paper.variants):
        if (record := run / "record.json").exists():
            planned, other = paper.variants[run.parent.name].data, read_json(record)["dataset"]["name"]
            yield planned.split("/")[0], other.split("/")[0]
        for head, protocol, result in head_results(run):
            if head in paper.heads and protocol in paper.protocols:
                planned, other = paper.protocols[protocol].test.set, result["protocol"]["test"]["set"]
                yield planned.split("/")[0], other.split("/")[0]


def _records(folder: Path, paper: str) -> list[Path]:
    """The records of a paper's runs; of all papers for `*`."""
    return sorted(folder.glob(str(FILES.run(paper, "*", "*") / "record.json")))


def _names(left_out: LeftOut | None) -> list[str]:
    """The data sets and variants that were left out."""
    return [*left_out.sets, *left_out.named] if left_out else []


def _about(files: Layout, name: str, left_out: LeftOut | None, older: Sequence[str]) -> dict[str, Any]:
    """A paper's entry in the manifest. `older`: figures that lack newer runs."""
    made: list[Record] = [*read_records(_records(files.folder, name))]
    made += [read_json(file) for file in sorted(files.folder.glob(str(FILES.timing(name, "*"))))]
    commits = sorted({str(each.get("git", {}).get("commit")) for each in made})
    without = {"without": left_out.model_dump(mode="json")} if left_out else {}
    kept = {"older_figures": list(older)} if older else {}
    return {"commits": commits, "dirty": dirty(made), **without, **kept}


def _check_size(folder: Path) -> None:
    total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if total > MOST_BYTES:
        raise UserError(
            f"{folder.name}: {total / 1e6:.1f} MB, more than the limit of {MOST_BYTES / 1e6:.0f} MB for git; "
            "draw the figures at a lower resolution"
        )


def _swap(new: Path, old: Path) -> None:
    """Replace the folder `old` by `new`; restore `old` if that fails."""
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


@command
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m recaps.report.publish", description="Publish finished papers in git."
    )
    parser.add_argument("--scale", required=True, help="the scale they were run at, e.g. desk")
    parser.add_argument("--papers", nargs="+", default=(), help="only these papers (default: all finished ones)")
    parser.add_argument("--without", nargs="+", default=(), help="data sets and variants that the run left out")
    parser.add_argument(
        "--add", action="store_true", help="keep published runs of the same papers with other seeds or variants"
    )
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of results (default: results)")
    parser.add_argument("--config", type=Path, default=Path("config"), help="folder of the configuration")
    parser.add_argument(
        "--allow-dirty", action="store_true", help="also publish runs of uncommitted code; the record says so"
    )
    parser.add_argument(
        "--rescore", action="store_true", help="publish nothing; judge the published papers by the claims of today"
    )
    options = parser.parse_args(arguments)
    target = options.results / "published" / options.scale
    if options.rescore:
        manifest = rescore(target, options.config)
    else:
        manifest = publish(
            options.results / options.scale,
            target,
            options.config,
            papers=options.papers,
            without=options.without,
            add=options.add,
            allow_dirty=options.allow_dirty,
        )
    lost = {name: about.get("without", {}) for name, about in manifest["papers"].items()}
    names = {name: ", ".join([*without.get("sets", ()), *without.get("named", ())]) for name, without in lost.items()}
    papers = ", ".join(f"{name} (without {each})" if each else name for name, each in names.items())
    print(f"{target}: {papers}; {len(manifest['files'])} files, {len(manifest['left_out'])} large data files left out")
    for name, about in manifest["papers"].items():
        if older := about.get("older_figures"):
            print(f"{name}: these figures lack newer runs, because the record lacks what they need: {', '.join(older)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
