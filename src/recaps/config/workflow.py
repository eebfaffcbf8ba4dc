"""The user's configuration and the scales."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from recaps.config.base import Section
from recaps.config.variant import Name


class Scale(Section):
    """How much is run."""

    description: str
    """What this scale is for."""
    stand_in: bool = False
    """Use embedded stand-in data instead of the official sets; no verdict is given on such results."""
    seeds: tuple[int, ...] = Field((0,), min_length=1)
    """One run per variant and seed."""
    datasets: dict[Name, Name] = {}
    """Sets to be replaced by another of the same shape, e.g. `affnist: affnist-generated`."""
    dataset_options: dict[Name, dict[str, Any]] = {}
    """Options of derived sets, e.g. `affnist-generated: {versions: 3}`."""


class Config(Section):
    """What a user sets in `config/config.yaml`, in a file of their own (`--configfile`) or by `--config key=value`."""

    scale: str = "smoke"
    """`smoke`, `desk`, `paper`, or any other file of `config/scales/`."""
    papers: tuple[Name, ...] | None = Field(None, min_length=1)
    """Papers to regenerate, e.g. `[sparse]`. null: all."""
    seeds: tuple[int, ...] | None = None
    """Seeds to run instead of the scale's own."""
    datasets: dict[Name, Name] = {}
    """Sets to be replaced by another of the same shape, before the scale's own replacements."""
    without: tuple[Name, ...] = ()
    """Data sets that cannot be had, e.g. `[smallnorb]`. Variants that need one, or a set made from one, are left out,
    and with them the tables and figures that are drawn from these alone. The scorecard and the report say so."""
    mirror: str | None = None
    """Folder or URL that is tried before the official addresses, laid out as `<dataset>/<file>`. The environment
    variable `RECAPS_MIRROR` is used when this is null."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where models run. `auto`: a GPU where there is one."""
    checkpoint_seconds: float = Field(120, gt=0)
    """Time between two checkpoints of a training: what is lost at most when a machine dies."""
    data: str = "data"
    """Folder of the official files."""
    results: str = "results"
    """Folder of everything that is made."""
    overrides: dict[str, Any] = {}
    """Changes to the papers' files for experiments of your own, e.g.
    `{sparse: {variants: {sparsecaps: {training: {steps: 100}}}}}`."""
