"""Turn the published metrics into the numbers of each run, once.

Run `PYTHONPATH=src python migrate.py`. Rows that a paper's `metrics(results)` computes are not written. Every record of
a run is marked as made before identities were recorded.
"""

import importlib
import importlib.util
import json
from pathlib import Path

import pandas as pd

from recaps.evaluation.record import metric_rows
from recaps.io import read_json, write_json, write_text
from recaps.papers import FOLDER
from recaps.report import publish
from recaps.report.claims import printed, read
from recaps.report.results import of_project
from recaps.workflow import layout
from recaps.workflow.layout import Layout

COLUMNS = ["variant", "seed", "metric", "value", "se", "n", "unit", "measured_on"]


def write(files: Layout, name: str, rows: pd.DataFrame) -> None:
    for run in publish._runs(files, name):
        own = (rows["variant"] == run.parent.name) & (rows["seed"] == run.name.removeprefix("seed-"))
        write_text(layout.numbers(run), rows.loc[own, COLUMNS].to_csv(index=False))


def migrate(folder: Path, name: str) -> None:
    files = Layout(folder)
    manifest = read_json(folder / publish.MANIFEST)
    sets = manifest["papers"][name].get("without", {}).get("sets", ())
    rows = pd.read_csv(files.metrics(name), dtype=str, keep_default_na=False)
    runs = {(run.parent.name, run.name.removeprefix("seed-")) for run in publish._runs(files, name)}
    assert set(zip(rows["variant"], rows["seed"], strict=False)) <= runs, (
        set(zip(rows["variant"], rows["seed"], strict=False)) - runs
    )
    write(files, name, rows)
    project = publish._project(files, name, Path("config"), sets)
    results = of_project(project, name, files, printed(read(FOLDER / name / "claims.yaml")))
    path = f"recaps.papers.{name}.metrics"
    computed = importlib.import_module(path).metrics(results) if importlib.util.find_spec(path) else []
    keys = {(row.variant, str(row.seed), row.metric) for row in metric_rows(computed).itertuples()}
    known = set(zip(rows["variant"], rows["seed"], rows["metric"], strict=False))
    print(folder.name, name, len(rows), "rows,", len(keys & known), "of them combined,", len(keys - known), "new")
    write(
        files, name, rows[[key not in keys for key in zip(rows["variant"], rows["seed"], rows["metric"], strict=False)]]
    )
    for run in publish._runs(files, name):
        record = json.loads((run / "record.json").read_text())
        write_json(run / "record.json", {**record, "origin": "before identity"})


if __name__ == "__main__":
    for scale in ("desk", "paper"):
        for folder in sorted(Path("results/published", scale, "runs").iterdir()):
            migrate(Path("results/published", scale), folder.name)
