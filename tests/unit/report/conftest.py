"""A synthetic tree of results in the project's own formats, with numbers of our choice."""

from __future__ import annotations

import base64
import json
import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from places import CONFIG

from recaps import npz
from recaps.config.load import Project, load
from recaps.layout import Layout
from recaps.papers import FOLDER, of
from recaps.plan.plan import Plan
from recaps.plan.receipts import Receipts, receipt
from recaps.report import html, scorecard
from recaps.report.draw import markdown

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
SPARSE = {
    ("sparsecaps", "svm-mnist", "percent"): 98.7,
    ("sparsecaps", "svm-affnist-a-position", "percent"): 84.2,
    ("sparsecaps", "svm-affnist-a-disjoint", "percent"): 83.6,
    ("sparsecaps", "svm-affnist-b", "percent"): 15.9,
    ("dense", "svm-mnist", "percent"): 97.6,
    ("dense", "svm-affnist-a-position", "percent"): 74.5,
    ("dense", "svm-affnist-a-disjoint", "percent"): 73.9,
    ("dense", "svm-affnist-b", "percent"): 15.2,
    ("supcaps", "argmax-mnist", "percent"): 99.1,
    ("supcaps", "argmax-mnist-shifted", "percent"): 99.0,
    ("supcaps", "argmax-affnist", "percent"): 78.0,
    ("convnet", "argmax-mnist-shifted", "percent"): 99.1,
    ("convnet", "argmax-affnist", "percent"): 78.4,
    ("sparsecaps-28", "svm-mnist-28", "percent"): 98.4,
    ("sparsecaps-28", "reconstruction-error-mnist", "squared error"): 13.2,
    ("sparsecaps", "reconstruction-error-affnist", "squared error"): 30.1,
    ("supcaps", "support-slope", "ratio"): 0.41,
    ("dense", "support-slope", "ratio"): 0.93,
    ("sparsecaps", "support-slope", "ratio"): 0.55,
    ("sparsecaps", "rank0-frequency-min", "fraction"): 0.031,
    ("sparsecaps", "rank0-frequency-max", "fraction"): 0.14,
}
DISCRIMINATIVE = {
    ("mnist-dr", "error", "percent"): 0.9,
    ("mnist-l2", "error", "percent"): 0.8,
    ("fashion-dr", "error", "percent"): 7.1,
    ("mnist-l2", "coefficients-negative", "fraction"): 0.3,
}
VALUES = {"sparse": SPARSE, "discriminative": DISCRIMINATIVE}
TIMING = {
    "kind": "timing",
    "device": "cpu (2 cores)",
    "torch": "2.13.0",
    "rounds": 2,
    "steps": 5,
    "stand_in": False,
    "git": {"commit": "fedcba98", "dirty": False},
    "seconds_per_step": {"mnist-dr": [0.2, 0.3]},
}


class Tree:
    """`results/<scale>` with one paper or study, and the project that asked for it."""

    def __init__(
        self,
        folder: Path,
        scale: str = "desk",
        seeds: tuple[int, ...] = (0, 1),
        paper: str = "sparse",
        without: tuple[str, ...] = (),
        datasets: Mapping[str, str] | None = None,
    ) -> None:
        values = {"scale": scale, "seeds": list(seeds), "papers": [of(paper)], "without": list(without)}
        self.project: Project = load({**values, "datasets": dict(datasets or {})}, CONFIG)
        self.paper = paper
        self.scale = scale
        self.seeds = seeds
        self.root = folder / "results" / scale
        self.files = Layout(self.root)

    @property
    def papers(self) -> Path:
        """The folder of the paper's tables, figures and metrics."""
        return self.files.paper(self.paper)

    def run(self, variant: str, seed: int) -> Path:
        return self.files.run(self.paper, variant, seed)

    def make(self, *, stand_in: bool = False, dirty: bool = False) -> Tree:
        paper = self.project.every[self.paper]
        metrics = self.metrics(stand_in=stand_in)
        for variant in paper.variants:
            for seed in self.seeds:
                self._run(variant, seed, stand_in, dirty)
                own = metrics[(metrics["variant"] == variant) & (metrics["seed"] == seed)]
                own.drop(columns=["paper", "stand_in"]).to_csv(self.run(variant, seed) / "numbers.csv", index=False)
        self.papers.mkdir(parents=True)
        metrics.to_csv(self.papers / "metrics.csv", index=False)
        for name in paper.tables:
            frame = pd.DataFrame({"algorithm": ["SPARSECAPS <b>", "Unmasked"], "published": ["90.12", "60.63"]})
            frame["ours"] = ["84.20 ± 0.30", "74.50 ± 0.40"]
            frame.to_csv(self.papers / f"{name}.csv", index=False)
            (self.papers / f"{name}.md").write_text(f"**Title**\n\nCaption.\n\n{markdown(frame)}")
            (self.papers / f"{name}.tex").write_text("a")
        for name in paper.figures:
            (self.papers / f"{name}.png").write_bytes(PIXEL)
            (self.papers / f"{name}.pdf").write_bytes(b"%PDF")
            (self.papers / f"{name}.csv").write_text("rank,support\n0,1.0\n")
        for name in paper.timings:
            self.files.timing(self.paper, name).parent.mkdir(exist_ok=True)
            self.files.timing(self.paper, name).write_text(json.dumps(TIMING))
        self.sign()
        self.score()
        return self

    def sign(self) -> None:
        """Write the receipts of all runs, as the jobs that make them do. Weights and latents are deleted since."""
        place = {"results": str(self.root.parent)}
        plan = Plan(self.project.model_copy(update={"config": self.project.config.model_copy(update=place)}))
        for job in (job for run in plan.runs([self.paper]) for job in plan.jobs_of(*run)):
            inputs, outputs = [Path(file) for file in job.inputs], [Path(file) for file in job.outputs]
            data = Receipts(self.root, inputs).data(inputs)
            deleted = [file for file in outputs if not file.exists()]
            with receipt(outputs, job.identity() | {"data": data}):
                for file in deleted:
                    file.touch()
            for file in deleted:
                file.unlink()

    def metrics(self, *, stand_in: bool = False, shift: float = 0.0) -> pd.DataFrame:
        rows = []
        variants = self.project.every[self.paper].variants
        every = {(variant, "loss-last-fifth", "percent"): 2.5 for variant in variants}
        for (variant, metric, unit), value in (VALUES.get(self.paper, {}) | every).items():
            for seed in self.seeds if variant in variants else ():
                row: dict[str, Any] = {"paper": self.paper, "variant": variant, "seed": seed, "metric": metric}
                row |= {"value": round(value * (1 + 0.004 * math.sin(seed + value)) + shift, 6), "se": None}
                row |= {"n": 10000, "unit": unit}
                row |= {"stand_in": stand_in, "measured_on": "affnist-generated/test" if "affnist" in metric else ""}
                rows.append(row)
        return pd.DataFrame(rows)

    def score(self) -> pd.DataFrame:
        return scorecard.make(
            [FOLDER / of(self.paper) / "claims.yaml"],
            [self.papers / "metrics.csv"],
            sorted(self.root.glob("runs/*/*/*/record.json")),
            self.root,
            scale=self.scale,
            papers=self.project.papers,
            left_out=self.project.left_out,
        )

    def build(self, **options: Any) -> str:
        html.build(self.project, self.root, self.files.report(), **options)
        return self.files.report().read_text(encoding="utf-8")

    def _run(self, variant: str, seed: int, stand_in: bool, dirty: bool) -> None:
        folder = self.run(variant, seed)
        folder.mkdir(parents=True)
        paper = self.project.every[self.paper]
        config = paper.variants[variant].model_dump(mode="json")
        (folder / "model.safetensors").write_bytes(b"weights")
        (folder / "config.json").write_text(json.dumps({"paper": self.paper, "variant": variant, **config}))
        steps = range(50, config["training"]["steps"] + 1, 50)
        losses = [60 * math.exp(-step / 4000) + 8 + math.sin(step + seed) for step in steps]
        pd.DataFrame({"step": steps, "loss": losses}).to_csv(folder / "history.csv", index=False)
        (folder / "record.json").write_text(json.dumps(self._record(variant, seed, config, stand_in, dirty)))
        results: dict[str, dict[str, Any]] = {}
        for head, protocols in config["heads"].items():
            for protocol in protocols:
                result = {"title": protocol, "accuracy": 0.9, "n": 10000, "n_fit": 20000, "seconds": 31.5}
                result |= {"head": paper.head(variant, head).model_dump(mode="json"), "stand_in": stand_in}
                result["protocol"] = paper.protocols[protocol].model_dump(mode="json")
                for part in filter(None, (result["protocol"]["fit"], result["protocol"]["test"])):
                    part["set"] = self.project.resolve(part["set"])
                results.setdefault(head, {})[protocol] = result
        (folder / "heads.json").write_text(json.dumps(results))
        npz.save_parts(folder / "arrays.npz", {"values": {"values": np.full(4, seed)}}, compressed=True)

    def _record(self, variant: str, seed: int, config: dict[str, Any], stand_in: bool, dirty: bool) -> dict[str, Any]:
        name, split = self.project.resolve(config["data"]).split("/")
        sources = [{"path": "mnist/train-images-idx3-ubyte.gz", "sha256": "4" * 64, "size": 9912422}]
        dataset = {"name": name, "split": split, "stand_in": stand_in, "n": 60000}
        return {
            "kind": "run",
            "paper": self.paper,
            "variant": variant,
            "seed": seed,
            "scale": self.scale,
            "config": config,
            "dataset": dataset | {"sources": sources, "digest": "d" * 64},
            "git": {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": dirty},
            "packages": {"torch": "2.13.0", "numpy": "2.4.6"},
            "python": "3.12.3",
            "device": "cpu (2 cores)",
            "threads": 2,
            "started": "2025-01-02T03:04:05",
            "finished": "2025-01-02T03:31:05",
            "wall_seconds": 1620.0,
            "interruptions": 0,
            "images_per_second": 512.3,
            "peak_memory_bytes": 2_100_000_000,
            "steps": config["training"]["steps"],
            "parameters": 8_215_728,
            "metrics": {"loss": 8.123456},
        }


@pytest.fixture(scope="session")
def made() -> dict[str, Path]:
    """The folders of trees that are made already, by their arguments."""
    return {}


@pytest.fixture
def tree(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, made: dict[str, Path]) -> Callable[..., Tree]:
    """A function that puts trees of results into the test's own folder: copies of one that is made once."""

    def make(
        scale: str = "desk",
        seeds: tuple[int, ...] = (0, 1),
        paper: str = "sparse",
        without: tuple[str, ...] = (),
        datasets: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Tree:
        arguments = (scale, seeds, paper, without, datasets)
        name = repr((*arguments, sorted(options.items())))
        if name not in made:
            made[name] = tmp_path_factory.mktemp("made")
            Tree(made[name], *arguments).make(**options)
        shutil.copytree(made[name], tmp_path, dirs_exist_ok=True)
        return Tree(tmp_path, *arguments)

    return make
