"""Every path of the results.

The rules, the command line, the drawings and the report all take their paths from here. A name may be a wildcard:
without arguments, `Layout.run` returns the pattern `results/{scale}/runs/{paper}/{variant}/seed-{seed}` for a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

DATASET_FILES = ("images.npy", "labels.npy", "factors.npz", "record.json")
#: What a training leaves.
RUN_FILES = ("model.safetensors", "config.json", "history.csv", "record.json")
#: What is read from a trained model: latents, probes, and the accuracies of its own class scores.
READ_FILES = ("latents.npz", "probes.npz", "scores.json")
FIGURE_FORMATS = ("pdf", "png", "csv")
#: The numbers that were measured on a run, and the arrays that pictures of it need.
MEASURED_FILES = ("numbers.csv", "arrays.npz")
#: The folder of finished heads beside a run's checkpoints.
HEADS = "heads"
#: The record of a run, besides the results of its heads: what is drawn, and what is published.
RECORD_FILES = ("config.json", "history.csv", "record.json", *MEASURED_FILES)
#: What is published of a run, as far as it has them.
PUBLISHED_FILES = (*RECORD_FILES, "scores.json", "heads.json")


@dataclass(frozen=True)
class Layout:
    """The files of one scale."""

    folder: Path
    """`results/<scale>`."""

    def dataset(self, set_name: str = "{dataset}/{split}") -> Path:
        """Return the folder of a prepared split, `name/split`. It holds `DATASET_FILES`."""
        return self.folder / "datasets" / set_name

    def runs(self, paper: str) -> Path:
        return self.folder / "runs" / paper

    def run(self, paper: str = "{paper}", variant: str = "{variant}", seed: int | str = "{seed}") -> Path:
        """Return the folder of a run: `RUN_FILES`, `READ_FILES`, the results of its heads and `MEASURED_FILES`."""
        return self.runs(paper) / variant / f"seed-{seed}"

    def checkpoints(self, paper: str = "{paper}", variant: str = "{variant}", seed: int | str = "{seed}") -> Path:
        """Return the folder of a run's lease and checkpoints: a folder for each identity, and `heads`."""
        return self.folder / "checkpoints" / paper / variant / f"seed-{seed}"

    def paper(self, paper: str = "{paper}") -> Path:
        """Return the folder of a paper's tables, figures, metrics and timings."""
        return self.folder / "papers" / paper

    def metrics(self, paper: str = "{paper}") -> Path:
        """Return the table of all numbers of a paper."""
        return self.paper(paper) / "metrics.csv"

    def timing(self, paper: str = "{paper}", name: str = "{timing}") -> Path:
        return self.paper(paper) / "timings" / f"{name}.json"

    def table(self, paper: str = "{paper}", name: str = "{table}") -> list[Path]:
        return [self.paper(paper) / f"{name}.{ending}" for ending in ("csv", "md", "tex")]

    def figure(self, paper: str = "{paper}", name: str = "{figure}") -> list[Path]:
        return [self.paper(paper) / f"{name}.{ending}" for ending in FIGURE_FORMATS]

    def shown(self, paper: str = "{paper}") -> Path:
        """Return the sentences that name the runs whose pictures a paper's figures show."""
        return self.paper(paper) / "shown.json"

    def scorecard(self) -> list[Path]:
        return [self.folder / f"scorecard.{ending}" for ending in ("csv", "md", "json", "png")]

    def verdicts(self, paper: str) -> Path:
        return self.folder / "verdicts" / f"{paper}.json"

    def report(self) -> Path:
        return self.folder / "report.html"

    def log(self, job: str) -> Path:
        """Return the log of a job, `<rule>/<names>`."""
        return self.folder / "logs" / f"{job}.log"


def _of_run(file: str) -> Callable[[Path], Path]:
    """Return a function from the folder of a run to one of its files."""
    return lambda run: run / file


#: The latents of a run: the arrays of each set, `name/split/array`.
latents = _of_run("latents.npz")
#: The probes of a run: the arrays of each probe, `probe/array`.
probes = _of_run("probes.npz")
#: The accuracies of the model's own class scores, by head and protocol.
scores = _of_run("scores.json")
#: The results of the classifiers fitted on a run's latents, by head and protocol.
heads = _of_run("heads.json")
#: The numbers that were measured on a run, a row each.
numbers = _of_run(MEASURED_FILES[0])
#: The arrays that pictures of a run need, `part/array`.
arrays = _of_run(MEASURED_FILES[1])


def named(folder: Path, files: Iterable[str]) -> dict[str, Path]:
    """Return the files of a folder by name without ending: `{"model": run / "model.safetensors", ...}`."""
    return {Path(file).stem: folder / file for file in files}
