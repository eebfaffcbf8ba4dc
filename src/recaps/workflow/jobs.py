"""The jobs of the workflow: what each makes from what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from recaps.identity import Identity, key


class Names(dict[str, Any]):
    """Values by name, also as attributes, as Snakemake passes wildcards to functions and scripts."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(name)
        return self[name]


@dataclass(frozen=True, eq=False)
class Job:
    """A job of the workflow.

    Attributes:
        stage: the name of its rule, and of its function in `recaps.workflow.stages`.
        names: its wildcards.
        inputs: files that it reads, official files aside.
        outputs: files that it makes.
        identity: returns `settings` and `modules` of its result.
    """

    stage: str
    names: Names
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    identity: Callable[[], dict[str, Any]]

    def __str__(self) -> str:
        names = self.names
        if "variant" in names:
            return f"{TITLES[self.stage]} of {names.paper}/{names.variant}, seed {names.seed}"
        if "dataset" in names:
            return f"{names.dataset}/{names.split}"
        return f"{TITLES[self.stage]} of {names.paper}" if "paper" in names else TITLES[self.stage]


def held(stage: str, identity: Identity) -> str:
    """Return what a lease says of a job that makes a part of a run."""
    return f"{stage} {key(identity)}"


#: What each stage makes, for messages.
TITLES = {
    "prepare_dataset": "data set",
    "train_variant": "training",
    "read_model": "latents and probes",
    "evaluate_heads": "heads",
    "record_run": "record",
    "time_steps": "timing",
    "collect_metrics": "metrics",
    "draw_tables": "tables",
    "draw_figures": "figures",
    "score_claims": "scorecard",
    "build_report": "report",
}
