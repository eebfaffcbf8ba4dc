"""Every path of the results, once.

A name may be a wildcard (`{paper}`), so that rules, the plan, drawings and the report all get their paths here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DATASET_FILES = ("images.npy", "labels.npy", "factors.npz", "record.json")
RUN_FILES = ("model.safetensors", "config.json", "history.csv", "record.json")
TABLE_FORMATS = ("csv", "md", "tex")
FIGURE_FORMATS = ("pdf", "png", "csv")
#: What a paper's metrics are: every number, and the arrays that its figures draw besides those of single runs.
METRICS_FILES = ("metrics.csv", "metrics.npz")
SCORECARD_FORMATS = ("csv", "md", "json")


@dataclass(frozen=True)
class Layout:
    """The files of one scale."""

    folder: Path
    """`results/<scale>`."""

    def dataset(self, set_name: str) -> Path:
        """The folder of a prepared split, given as `name/split`; it holds `DATASET_FILES`."""
        return self.folder / "datasets" / set_name

    def runs(self, paper: str) -> Path:
        return self.folder / "runs" / paper

    def run(self, paper: str, variant: str, seed: int | str) -> Path:
        """The folder of a run; it holds `RUN_FILES`."""
        return self.runs(paper) / variant / f"seed-{seed}"

    def checkpoints(self, paper: str, variant: str, seed: int | str, key: str) -> Path:
        """Where a run's state is kept while it trains. `key` tells apart states of settings, code and data."""
        return self.folder / "checkpoints" / paper / variant / f"seed-{seed}" / key

    def paper(self, paper: str) -> Path:
        """The folder of a paper's tables, figures, metrics and timings."""
        return self.folder / "papers" / paper

    def metrics(self, paper: str) -> list[Path]:
        return [self.paper(paper) / name for name in METRICS_FILES]

    def timing(self, paper: str, name: str) -> Path:
        return self.paper(paper) / "timings" / f"{name}.json"

    def table(self, paper: str, name: str) -> list[Path]:
        return [self.paper(paper) / f"{name}.{ending}" for ending in TABLE_FORMATS]

    def figure(self, paper: str, name: str) -> list[Path]:
        return [self.paper(paper) / f"{name}.{ending}" for ending in FIGURE_FORMATS]

    def scorecard(self) -> list[Path]:
        return [self.folder / f"scorecard.{ending}" for ending in SCORECARD_FORMATS]

    def verdicts(self, paper: str) -> Path:
        return self.folder / "verdicts" / f"{paper}.json"

    def report(self) -> Path:
        return self.folder / "report.html"


def latents(run: Path, set_name: str) -> Path:
    """The latents of a run on a set, given as `name/split`."""
    return run / "latents" / f"{set_name.replace('/', '-')}.npz"


def head(run: Path, head: str, protocol: str) -> Path:
    """The result of a run's head under a protocol."""
    return run / "heads" / f"{head}-{protocol}.json"


def probe(run: Path, name: str) -> Path:
    """A probe of a run."""
    return run / "probes" / f"{name}.npz"
