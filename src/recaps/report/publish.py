"""The published record: what git keeps of finished runs, some MB per scale, without weights.

`python -m recaps.report.publish --scale desk` copies the records of all finished runs of `results/desk` to
`results/published/desk`; `--papers discriminative` copies those of one paper, `--papers sparse.svm` those of a study.
They replace published runs of the same variant and seed, and all others stay. Metrics, tables, figures, the scorecard
and the page `index.html` are then drawn from all published records, as they are drawn from `results/desk`. A picture
that needs arrays which its runs' records lack stays as it was; the manifest lists it. `--draw` copies nothing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from recaps import layout
from recaps.command import command
from recaps.config.heads import Head, Protocol
from recaps.config.load import Project, load
from recaps.config.reading import check
from recaps.config.variant import Paper
from recaps.config.without import LeftOut
from recaps.datasets import catalogue
from recaps.errors import Missing, UserError, nearest
from recaps.identity import differences
from recaps.io import digest_of, read_json, write_json
from recaps.layout import PUBLISHED_FILES, RECORD_FILES, Layout
from recaps.papers import FOLDER, of
from recaps.plan.plan import Plan
from recaps.plan.receipts import changed, refuse
from recaps.plan.state import State
from recaps.report import collect, draw, findings, html, scorecard
from recaps.report.charts import thin
from recaps.report.claims import printed, read
from recaps.report.measured import METRICS, dirty, finished_papers, head_results, measured_seeds, read_records, stand_in
from recaps.report.results import Results, of_project

#: Rows kept of a run's history, besides its first tenth and the rows with a test error.
MOST_ROWS = 100
#: Bytes of the whole record of a scale.
MOST_BYTES = 30_000_000

MANIFEST = "MANIFEST.json"
#: Paths relative to the folder of a scale.
FILES = Layout(Path())
#: Added to the caption of a figure that is kept.
KEPT = "Drawn earlier; it needs new runs to be drawn again."


def publish(
    results: Path,
    published: Path,
    config: Path,
    *,
    papers: Sequence[str] = (),
    without: Sequence[str] = (),
    allow_dirty: bool = False,
) -> dict[str, Any]:
    """Add the finished runs of `papers` in the folder `results` to the record in the folder `published`.

    Args:
        results: the folder of a scale.
        config: the folder that holds `scales/`.
        papers: the papers to publish; all finished ones if empty.
        without: data sets and variants that the runs left out.

    Returns:
        The manifest, see `_draw`.

    Raises:
        UserError: a paper is unfinished, uses stand-in data or uncommitted changes, was made with other settings than
            today's, or is too large. `published` is then unchanged.
    """
    chosen = _choose(results, papers)
    values = {"scale": results.name, "papers": sorted(set(map(of, chosen))), "without": without}
    with _replacing(published) as building:
        new, record, lost = Layout(results), Layout(building), _copy_record(published, building)
        used = [_datasets([_runs(record, name), _runs(new, name)], results.name, name, config) for name in chosen]
        project = load({**values, "datasets": {key: other for each in used for key, other in each.items()}}, config)
        for name in chosen:
            _add(new, record, name, project, allow_dirty)
        return _draw(building, published, config, lost | dict.fromkeys(chosen, without))


def draw_again(published: Path, config: Path) -> dict[str, Any]:
    """Draw the record again, from the published runs. Return the manifest. `config`: the folder with `scales/`."""
    if not published.exists():
        raise UserError(f"{published}: no published paper")
    with _replacing(published) as building:
        return _draw(building, published, config, _copy_record(published, building))


@contextmanager
def _replacing(published: Path) -> Iterator[Path]:
    """Yield a new folder, which replaces `published` if the block succeeds. If not, `published` stays as it was."""
    building = published.parent / f".{published.name}.{os.getpid()}.part" / published.name
    aside = building.with_suffix(".old")
    try:
        building.mkdir(parents=True)
        yield building
        if published.exists():
            os.replace(published, aside)
        os.replace(building, published)
    except OSError as error:
        raise UserError(f"{published}: cannot be written ({error.strerror or error}); it is unchanged") from error
    finally:
        if aside.exists() and not published.exists():
            os.replace(aside, published)
        shutil.rmtree(building.parent, ignore_errors=True)


def _choose(results: Path, papers: Sequence[str]) -> list[str]:
    """The papers to publish; every named one must be finished."""
    made = [name for name in papers if any(map(_is_whole, _runs(Layout(results), name)))]
    there = dict.fromkeys([*finished_papers(results), *made])
    if not there:
        raise UserError(f"{results}: no finished paper (no {METRICS}); {_finish(results)}")
    for name in papers:
        if name not in there:
            raise UserError(f"{results}: no finished paper '{name}'{nearest(name, there)}; {_finish(results)}")
    return [name for name in there if name in (papers or there)]


def _finish(results: Path) -> str:
    return f"finish it first: snakemake --profile profiles/local --config scale={results.name}"


def _copy_record(published: Path, building: Path) -> dict[str, Sequence[str]]:
    """Copy the records of all published runs, and the timings. Return the papers, each with the sets it left out."""
    if not published.exists():
        return {}
    shutil.copytree(published / "runs", building / "runs")
    for file in published.glob(str(FILES.timing("*", "*"))):
        _copy(file, building / file.relative_to(published))
    about = read_json(published / MANIFEST).get("papers", {})
    names = sorted({record.parts[-4] for record in published.glob(str(FILES.run("*", "*", "*") / "record.json"))})
    return {name: about.get(name, {}).get("without", {}).get("sets", ()) for name in names}


def _add(results: Layout, record: Layout, name: str, project: Project, allow_dirty: bool) -> None:
    """Copy the finished runs and the timings of a paper to the record."""
    paper = project.every[name]
    runs = _finished(results, name, paper)
    seeds = tuple(sorted({_seed(run) for run in runs})) or None
    place = {"results": str(results.folder.parent), "seeds": seeds}
    state = State(Plan(project.model_copy(update={"config": project.config.model_copy(update=place)})))
    made = [_check_run(run, state, name) for run in runs]
    for run in runs:
        shutil.rmtree(target := record.folder / run.relative_to(results.folder), ignore_errors=True)
        for file in (run / file for file in PUBLISHED_FILES if (run / file).exists()):
            _copy(file, target / file.name)
    for timing in paper.timings:
        made += _add_timing(results.timing(name, timing), record.timing(name, timing))
    if dirty(made) and not allow_dirty:
        raise UserError(
            f"{results.paper(name)}: made from uncommitted changes; commit and run again, or publish with --allow-dirty"
        )
    _check_record(results.folder, record, name, project, new={run.parent.name for run in runs})


def _finished(results: Layout, name: str, paper: Paper) -> list[Path]:
    """The folders of all finished runs of a paper."""
    for variant, seeds in measured_seeds(results.metrics(name)).items():
        for run in (results.run(name, variant, seed) for seed in seeds if variant in paper.variants):
            if not _is_whole(run):
                raise UserError(f"{run}: in the metrics of {name}, but not a finished run; {_finish(results.folder)}")
    return [run for run in _runs(results, name) if run.parent.name in paper.variants and _is_whole(run)]


def _is_whole(run: Path) -> bool:
    return all((run / file).exists() for file in RECORD_FILES)


def _runs(files: Layout, name: str) -> list[Path]:
    """The folders of the runs of a paper, in the order of their seeds."""
    found = (file.parent for file in files.folder.glob(str(FILES.run(name, "*", "*") / "record.json")))
    return sorted(found, key=lambda run: (run.parent.name, _seed(run)))


def _seed(run: Path) -> int:
    return int(run.name.removeprefix("seed-"))


def _check_run(run: Path, state: State, name: str) -> dict[str, Any]:
    """Raise a UserError if a run must not be published. Return its record."""
    record = dict(read_json(run / "record.json"))
    if stand_in([record]) or any(result.get("stand_in") for _, _, result in head_results(run)):
        raise UserError(f"{run}: made from stand-in data, which is never published; run a scale with official data")
    if own := record.get("dataset", {}).get("own"):
        raise UserError(f"{run}: made from your own data ({own}), which are never published")
    refuse(changed(run / file for file in PUBLISHED_FILES if (run / file).exists()))
    jobs = state.plan.jobs_of(name, run.parent.name, _seed(run))
    if differing := next((f"{job}: {text}" for job in jobs if (text := state.difference(job))), ""):
        raise UserError(f"{run}: {differing}; run it again, or move this folder away")
    return record


def _check_record(results: Path, record: Layout, name: str, project: Project, new: Collection[str]) -> None:
    """Raise a UserError if variants of a paper lack runs, or if seeds of the variants `new` differ in settings."""
    there = {run.parent.name: run for run in _runs(record, name)}
    # A study may grow by rows. Its figure may compare some of them.
    for variant in project.every[name].variants if name in project.papers or project.every[name].figures else ():
        if variant not in there:
            how = f"if it was left out, name it or its data set with --without; otherwise {_finish(results)}"
            raise UserError(f"{results}: no run of {name}/{variant}; {how}")
    for variant in project.left_out[name].variants if name in project.left_out else ():
        if variant in there:
            raise UserError(f"{name}/{variant} is published; to keep it, remove it or its data set from --without")
    for run in _runs(record, name):
        if run.parent.name in new and (other := _other_settings(run, project, name)):
            raise UserError(
                f"{name}/{run.parent.name}: the published {run.name} was {other} than today; publish all seeds anew"
            )


def _other_settings(run: Path, project: Project, name: str) -> str:
    """In what a run differs from its variant of today, e.g. `trained with other settings`; empty if in nothing."""
    paper, config = project.every[name], read_json(run / "config.json")
    if (variant := paper.variants.get(run.parent.name)) is None:
        return "of a variant that is no more"
    today = variant.model_dump(mode="json", include={"model", "training"})
    unread = {option: today["model"][option] for option in variant.model.unread(variant.probes)}
    data, now = read_json(run / "record.json")["dataset"]["name"], project.resolve(variant.data).split("/")[0]
    try:
        trained = {"model": config["model"] | unread, "training": config["training"]}
        if found := differences({"settings": trained}, {"settings": today}):
            return f"trained with other settings ({'; '.join(found)})"
        if data != now:
            return f"trained on {data} instead of {now}, so with other data"
        for head, protocol, result in head_results(run):
            if protocol in variant.heads.get(head, ()):
                own_head, was = check(Head, result["head"], ""), check(Protocol, result["protocol"], "")
                now_read = _resolved(was, paper.protocols[protocol], project, own_head.kind != "argmax")
                if (own_head, was) != (paper.head(run.parent.name, head), now_read):
                    return f"measured (head {head}, protocol {protocol}) with other settings or data"
    except UserError:  # an option that is no more
        return "made with other settings"
    return ""


def _resolved(was: Protocol, now: Protocol, project: Project, fitted: bool) -> Protocol:
    """A protocol of today with the sets that replace its own. What a head that is not fitted ignores stays."""
    test, fit = (part and part.model_copy(update={"set": project.resolve(part.set)}) for part in (now.test, now.fit))
    return was.model_copy(update={"test": test} | ({"fit": fit} if fitted else {}))


def _add_timing(new: Path, old: Path) -> list[dict[str, Any]]:
    """Replace a timing by one of the same variants or more: times of different jobs are not compared.

    Return the new timing; nothing if there is none.
    """
    if not new.exists():
        return []
    timing = dict(read_json(new))
    if not old.exists() or read_json(old)["seconds_per_step"].keys() <= timing["seconds_per_step"].keys():
        _copy(new, old)
    return [timing]


def _copy(source: Path, target: Path) -> None:
    """Copy one file; thin and round a history."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.name == "history.csv":
        history = pd.read_csv(source)
        history.iloc[_kept_rows(history)].to_csv(target, index=False, float_format="%.6g")
    else:
        shutil.copyfile(source, target)


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


def _draw(building: Path, published: Path, config: Path, lost: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Draw everything from the records of runs in the folder `building`. Write and return the manifest.

    It has of each paper the commits, what is left out, the figures that are kept and the runs with other settings than
    today's; and the checksum of every file. Pictures that cannot be drawn are kept from `published`, the record as it
    was. `lost`: the data sets and variants that each paper left out.
    """
    files = Layout(building)
    projects = {name: _project(files, name, config, lost[name]) for name in sorted(lost)}
    whole = _merged(projects)
    about: dict[str, dict[str, Any]] = {}
    for name, project in projects.items():
        runs = _runs(files, name)
        _keep_first_arrays(runs)
        values = printed(read(FOLDER / name / "claims.yaml")) if name in project.papers else {}
        kept = _draw_paper(of_project(project, name, files, values), Layout(published))
        if name in project.papers:
            whole.papers[name] = _marked(project.papers[name], kept)
        made = read_records(run / "record.json" for run in runs)
        made += [read_json(file) for file in sorted(building.glob(str(FILES.timing(name, "*"))))]
        lists = {
            "without": whole.left_out[name].model_dump(mode="json") if name in whole.left_out else {},
            "kept": kept,
            "other_settings": [str(run.relative_to(building)) for run in runs if _other_settings(run, project, name)],
        }
        commits = sorted({str(each.get("git", {}).get("commit")) for each in made})
        about[name] = {"commits": commits, "dirty": dirty(made)} | {key: each for key, each in lists.items() if each}
    scorecard.make(
        [FOLDER / name / "claims.yaml" for name in whole.papers],
        [files.metrics(name) for name in projects],
        [run / "record.json" for name in projects for run in _runs(files, name)],
        building,
        scale=building.name,
        papers=whole.papers,
        left_out=whole.left_out,
    )
    other = [run for each in about.values() for run in each.get("other_settings", ())]
    found = {name: findings.read(building, config, name) for name in ("", *whole.papers)}
    html.build(whole, building, building / "index.html", linked=True, found=found, other_settings=other)
    written = {path.relative_to(building).as_posix(): path for path in sorted(building.rglob("*")) if path.is_file()}
    if (total := sum(path.stat().st_size for path in written.values())) > MOST_BYTES:
        raise UserError(
            f"{published}: {total / 1e6:.1f} MB, more than the limit of {MOST_BYTES / 1e6:.0f} MB for git; "
            "draw the figures at a lower resolution"
        )
    digests = {name: digest_of(path) for name, path in written.items()}
    manifest = {"scale": building.name, "papers": about, "files": digests}
    write_json(building / MANIFEST, manifest)
    return manifest


def _merged(projects: Mapping[str, Project]) -> Project:
    """The projects of several papers as one."""
    every = projects.values()
    used = {name: other for project in every for name, other in project.config.datasets.items()}
    first = next(iter(every))
    merged = {
        "papers": {name: paper for project in every for name, paper in project.papers.items()},
        "studies": {name: study for project in every for name, study in project.studies.items()},
        "left_out": {name: lost for project in every for name, lost in project.left_out.items()},
        "config": first.config.model_copy(update={"datasets": used}),
    }
    return first.model_copy(update=merged)


def _project(files: Layout, name: str, config: Path, without: Sequence[str]) -> Project:
    """The configuration of the runs of a paper or a study in the record: their variants, seeds and data sets."""
    scale, runs = files.folder.name, _runs(files, name)
    values = {"scale": scale, "papers": [of(name)], "datasets": _datasets([runs], scale, name, config)}
    seeds: dict[str, tuple[int, ...]] = {}
    for run in runs:
        seeds[run.parent.name] = (*seeds.get(run.parent.name, ()), _seed(run))
    sets = [each for each in without if "/" not in each]
    if name != of(name):
        return _of_study(load({**values, "without": sets}, config), name, seeds)
    there = load({**values, "without": sets}, config).papers[name].variants
    missing = [f"{name}/{variant}" for variant in there if variant not in seeds]
    project = load({**values, "without": [*sets, *missing]}, config)
    paper = project.papers[name]
    variants = {key: each.model_copy(update={"seeds": seeds[key]}) for key, each in paper.variants.items()}
    return project.model_copy(update={"papers": {name: paper.model_copy(update={"variants": variants})}, "studies": {}})


def _of_study(project: Project, name: str, seeds: Mapping[str, tuple[int, ...]]) -> Project:
    """The project with a study alone, of the rows that have runs, which the page shows; the others are left out."""
    if name not in project.studies:
        raise UserError(f"{name}: published, but there is no such study; remove its runs from the record")
    study = project.studies[name]
    rows = {key: row.model_copy(update={"seeds": seeds[key]}) for key, row in study.variants.items() if key in seeds}
    changes = {key: each for key, each in study.changes.items() if key in rows}
    shown = study.model_copy(update={"variants": rows, "changes": changes, "reported": True})
    missing = tuple(f"{name}/{row}" for row in study.variants if row not in rows)
    left_out = {name: LeftOut(sets=(), named=missing)} if missing else {}
    return project.model_copy(update={"papers": {}, "studies": {name: shown}, "left_out": left_out})


def _datasets(groups: Iterable[Sequence[Path]], scale: str, name: str, config: Path) -> dict[str, str]:
    """The data sets that runs of a paper were trained and tested on in place of those that the scale plans.

    If two groups of runs used different sets in place of one, the later group counts.
    """
    plain = load({"scale": scale, "papers": [of(name)]}, config)
    used: dict[str, str] = {}
    for runs in groups:
        pairs = list(_used(runs, plain.every[name])) if name in plain.every else []
        used |= {planned: plain.dataset(planned) for planned, _ in pairs}
        used |= {planned: other for planned, other in pairs if plain.dataset(planned) != other}
    return {name: other for name, other in used.items() if plain.dataset(name) != other and other in catalogue.names()}


def _used(runs: Iterable[Path], paper: Paper) -> Iterator[tuple[str, str]]:
    """The data sets that runs should use, each with the one that was used."""
    for run in runs:
        if run.parent.name in paper.variants:
            planned, other = paper.variants[run.parent.name].data, read_json(run / "record.json")["dataset"]["name"]
            yield planned.split("/")[0], other.split("/")[0]
        for head, protocol, result in head_results(run):
            if head in paper.heads and protocol in paper.protocols:
                planned, other = paper.protocols[protocol].test.set, result["protocol"]["test"]["set"]
                yield planned.split("/")[0], other.split("/")[0]


def _keep_first_arrays(runs: Sequence[Path]) -> None:
    """Delete the arrays of runs, except of the first seed of each variant that has them."""
    having = [run for run in runs if layout.arrays(run).exists()]
    first = {run.parent: run for run in reversed(having)}
    for run in set(having) - set(first.values()):
        layout.arrays(run).unlink()


def _draw_paper(results: Results, published: Layout) -> list[str]:
    """Write the metrics, tables and figures of a paper. Return the figures whose published pictures are kept."""
    name, files, kept = results.name, results.files, []
    collect.metrics(results)
    for table in results.paper.tables:
        draw.table(table, results, results.folder)
        files.table(name, table)[2].unlink()  # LaTeX
    shown, before = {}, read_json(published.shown(name)) if published.shown(name).exists() else {}
    for figure in results.paper.figures:
        try:
            shown[figure] = draw.figure(figure, results, results.folder, ("png",))
        except Missing:
            there = [file for file in published.figure(name, figure) if file.exists()]
            for file in there:
                shutil.copyfile(file, results.folder / file.name)
            kept += [figure] if there else []
            shown[figure] = before.get(figure, "")
    write_json(files.shown(name), {figure: sentence for figure, sentence in shown.items() if sentence})
    return kept


def _marked(paper: Paper, kept: Collection[str]) -> Paper:
    """The paper with captions that say which pictures are kept."""
    figures = {name: paper.figures[name] for name in kept}
    marked = {key: each.model_copy(update={"caption": f"{each.caption} {KEPT}"}) for key, each in figures.items()}
    return paper.model_copy(update={"figures": {**paper.figures, **marked}})


@command
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m recaps.report.publish", description="Publish the records of finished runs in git."
    )
    parser.add_argument("--scale", required=True, help="the scale they were run at, e.g. desk")
    parser.add_argument("--papers", nargs="+", default=(), help="only these papers (default: all finished ones)")
    parser.add_argument("--without", nargs="+", default=(), help="data sets and variants that the runs left out")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of results (default: results)")
    parser.add_argument("--config", type=Path, default=Path("config"), help="folder of the configuration")
    parser.add_argument(
        "--allow-dirty", action="store_true", help="also publish runs of uncommitted code; the record says so"
    )
    parser.add_argument("--draw", action="store_true", help="publish nothing; draw the published record again")
    options = parser.parse_args(arguments)
    target = options.results / "published" / options.scale
    if options.draw:
        manifest = draw_again(target, options.config)
    else:
        chosen = {key: getattr(options, key) for key in ("papers", "without", "allow_dirty")}
        manifest = publish(options.results / options.scale, target, options.config, **chosen)
    findings.write(options.results.resolve().parent)
    lost = {name: about.get("without", {}) for name, about in manifest["papers"].items()}
    names = {name: ", ".join([*without.get("sets", ()), *without.get("named", ())]) for name, without in lost.items()}
    papers = ", ".join(f"{name} (without {each})" if each else name for name, each in names.items())
    print(f"{target}: {papers}; {len(manifest['files'])} files")
    for name, about in manifest["papers"].items():
        if kept := about.get("kept"):
            print(f"{name}: pictures that cannot be drawn again until their runs are made anew: {', '.join(kept)}")
        if other := about.get("other_settings"):
            print(f"{name}: trained or measured with other settings than today: {', '.join(other)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
