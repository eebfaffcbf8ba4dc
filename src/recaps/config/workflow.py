"""The user's configuration and the scales."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from recaps.config.base import FilePath, Name, Section, Seeds, VariantName, expanded
from recaps.config.variant import Study
from recaps.datasets import catalogue

#: In the path of a mistake, the place of a text where a section may stand as well.
TEXT = "text"
#: Of mirrors.
SCHEMES = ("http", "https", "file")


def _mirror(address: str) -> str:
    """Return the address of a mirror, if its scheme is known."""
    scheme, found, rest = address.partition("://")
    if not found:
        return expanded(address)
    if scheme.lower() not in SCHEMES:
        known = ", ".join(f"{each}://" for each in SCHEMES)
        raise ValueError(f"{scheme}:// is not supported; give a folder, or an address with {known}")
    return f"{scheme.lower()}://{rest}"


class Scale(Section):
    """How much is run: seeds and data sets."""

    description: str
    """What this scale is for."""
    stand_in: bool = False
    """Use embedded stand-in data instead of the official sets. The scorecard gives no verdicts on such results."""
    seeds: Seeds = (0,)
    """Seeds. Each variant without `seeds` of its own is trained once with each."""
    datasets: dict[Name, Name] = {}
    """Data sets to replace by another of the same shape and number of classes, e.g. `affnist: affnist-generated`."""
    dataset_options: dict[Name, dict[str, Any]] = {}
    """Options of data sets, e.g. `affnist-generated: {versions: 3}`."""

    def options_of(self, name: str) -> dict[str, Any]:
        """Return the options of a set; a copy has those of the set that it is a copy of."""
        return {**self.dataset_options.get(catalogue.plain(name), {}), **self.dataset_options.get(name, {})}


class OwnData(Section):
    """Your own images, in place of a data set: `datasets: {mine: {path: my.npz}, mnist: mine}`."""

    path: FilePath
    """An NPZ file with `images` and `labels`, or a folder with a folder of pictures for each class.
    `docs/own-data.md` describes both."""
    size: int | None = Field(None, ge=8, le=1024)
    """Resize images to this height and width. null: images already have the size of the set that they replace."""
    grey: bool = False
    """Turn colour into grey."""
    background: Literal["white", "black"] = "white"
    """What is behind transparent pixels of pictures."""
    test_fraction: float = Field(0.2, gt=0, lt=1)
    """Share of each class that becomes the test split, if the data name none."""
    seed: int = Field(0, ge=0)
    """Seed of the random choice of test images."""


_NameOrData = Annotated[
    Annotated[Name, Tag(TEXT)] | Annotated[OwnData, Tag(OwnData.__name__)],
    Discriminator(lambda value: TEXT if isinstance(value, str) else OwnData.__name__),
]


class Config(Section):
    """Your settings, in `config/config.yaml`, in your own file (`--configfile`) or by `--config key=value`."""

    scale: str = "smoke"
    """How much to run: `smoke`, `desk`, `paper`, or any other file in `config/scales/`."""
    papers: tuple[Name, ...] | None = Field(None, min_length=1)
    """Papers to regenerate, e.g. `[sparse, experts]`. null: every folder of `src/recaps/papers/`."""
    seeds: Seeds | None = None
    """Seeds of all variants, instead of the scale's and of the variants' own. null: those."""
    datasets: dict[Name, _NameOrData] = {}
    """Data sets to replace by another of the same shape, e.g. `{cifar10: cifar10-jpeg}`; they override the scale's.
    Also your own data, by a name, and the set that they replace: `{mine: {path: my.npz}, mnist: mine}`."""
    without: tuple[Name | VariantName, ...] = ()
    """Data sets and variants to leave out because they are unavailable or take too long, e.g. `[smallnorb,
    sparse/supcaps]`. Variants that need such a set, or one derived from it, are left out, too, as are tables and
    figures that would show only what is left out, or cannot be drawn without it. The scorecard and the report name what
    is missing."""
    only: tuple[str, ...] = ()
    """Variants to make, without all others, by name or by pattern, e.g. `[sparse/sparsecaps, mnist-*]`, and those that
    their records need. Tables and figures show those that are there."""
    studies: dict[Name, Study] = {}
    """Your own studies by name, each with `of`, e.g. `{rates: {of: sparse/sparsecaps, vary: {training.learning_rate:
    [0.001, 0.0003]}}}`. They are made and reported with everything else; the target of this one is `sparse.rates`."""
    mirror: Annotated[str, AfterValidator(_mirror)] | None = None
    """Folder or URL to try before the official addresses; its files are `<dataset>/<file>`. null: use the environment
    variable `RECAPS_MIRROR`."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device that models run on. `auto`: a GPU if there is one that PyTorch can use."""
    checkpoint_seconds: float = Field(120, gt=0)
    """Seconds between two checkpoints of a training run. A crash loses about this much work at most, unless the disk is
    full."""
    max_training_minutes: int = Field(1440, ge=1)
    """Minutes that a training asks a cluster for at most, such as the time limit of your partition. A training that
    needs more is stopped there, and its next attempt continues."""
    data: FilePath = "data"
    """Folder of the official files."""
    results: FilePath = "results"
    """Folder of all results."""
    overrides: dict[str, Any] = {}
    """Changes to the papers' files, except to their keys `defaults` and `scales`, for your own experiments, e.g.
    `{sparse: {variants: {sparsecaps: {training: {steps: 100}}}}}`."""
