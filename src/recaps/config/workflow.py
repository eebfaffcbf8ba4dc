"""The user's configuration and the scales."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from recaps.config.base import Name, Section, Seeds


class Scale(Section):
    """How much is run: seeds and data sets."""

    description: str
    """What this scale is for."""
    stand_in: bool = False
    """Use embedded stand-in data instead of the official sets. The scorecard gives no verdicts on such results."""
    seeds: Seeds = (0,)
    """Seeds; each variant is trained once with each seed."""
    datasets: dict[Name, Name] = {}
    """Data sets to replace by another of the same shape, e.g. `affnist: affnist-generated`."""
    dataset_options: dict[Name, dict[str, Any]] = {}
    """Options of derived data sets, e.g. `affnist-generated: {versions: 3}`."""


class Config(Section):
    """Your settings, in `config/config.yaml`, in your own file (`--configfile`) or by `--config key=value`."""

    scale: str = "smoke"
    """How much to run: `smoke`, `desk`, `paper`, or any other file in `config/scales/`."""
    papers: tuple[Name, ...] | None = Field(None, min_length=1)
    """Papers to regenerate, e.g. `[sparse, experts]`. null: every folder of `src/recaps/papers/`."""
    seeds: Seeds | None = None
    """Seeds to use instead of the scale's seeds."""
    datasets: dict[Name, Name] = {}
    """Data sets to replace by another of the same shape, e.g. `{cifar10: cifar10-jpeg}`. They override the scale's."""
    without: tuple[Name, ...] = ()
    """Data sets that are unavailable, e.g. `[smallnorb]`. Variants that need one of them, or a set derived from it, are
    left out, as are the tables and figures that show only such variants. The scorecard and the report name what is
    missing."""
    mirror: str | None = None
    """Folder or URL to try before the official addresses; its files are `<dataset>/<file>`. null: use the environment
    variable `RECAPS_MIRROR`."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device that models run on. `auto`: a GPU if there is one."""
    checkpoint_seconds: float = Field(120, gt=0)
    """Seconds between two checkpoints of a training run. A crash loses at most this much work."""
    data: str = "data"
    """Folder of the official files."""
    results: str = "results"
    """Folder of all results."""
    overrides: dict[str, Any] = {}
    """Changes to the papers' files for your own experiments, e.g.
    `{sparse: {variants: {sparsecaps: {training: {steps: 100}}}}}`."""
