"""A paper's settings: variants, heads, protocols, timings, tables and figures."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from recaps.config.base import LatentsName, Name, Positive, Section, Seeds, SetName, snapshot_of
from recaps.config.families import families
from recaps.config.heads import Head, Protocol, listed
from recaps.config.training import Training
from recaps.errors import nearest

Pattern = Annotated[str, Field(pattern=r"^[a-z0-9*][a-z0-9*-]*$")]

#: The options of any family; the field `family` selects the family.
AnyFamily: Any = Annotated[reduce(or_, families().values()), Field(discriminator="family")]


def _counted(value: Any) -> Any:
    """Return a list of probes as a mapping to 32 images each."""
    if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
        return dict.fromkeys(value, 32)
    return value


Counts = Annotated[
    dict[Name, Positive], BeforeValidator(_counted, json_schema_input_type=dict[Name, Positive] | tuple[Name, ...])
]
OneOrMoreTexts = Annotated[tuple[str, ...], BeforeValidator(listed, json_schema_input_type=str | tuple[str, ...])]
#: The values of an option in a study.
Values = Annotated[tuple[Any, ...], Field(min_length=1)]


class Variant(Section):
    """A model, a data set and hyper-parameters that a paper trains."""

    title: str
    """Name in tables and figures."""
    model: AnyFamily
    """Options of the model's family."""
    data: SetName
    """Data set and split to train on, e.g. `mnist/train`."""
    training: Training = Training()
    """Settings of the training run."""
    seeds: Seeds | None = None
    """Seeds that replace the scale's for this variant. They must include the scale's first seed. `seeds` in
    `config.yaml` replaces both."""
    latents: dict[LatentsName, Positive | None] = {}
    """More sets to extract latents from than its heads need, or other numbers of images; null: all images.
    `mnist/test@1000`: with the snapshot `1000`, see `training.snapshots`."""
    heads: dict[Name, tuple[Name, ...]] = {}
    """Heads to fit, each with its protocols."""
    probes: Counts = {}
    """Probes to compute, each with its number of test images, which form a single batch. A probe is a function in the
    paper's `probes.py`: `single-capsules` is `single_capsules`. A list of names means 32 images for each."""

    images: tuple[SetName, ...] = ()
    """Sets whose images its record needs, e.g. `mnist/test`."""
    beside: tuple[Name, ...] = ()
    """Variants whose trained models and latents the record of this one needs, e.g. the classifier that judges its
    samples: those of the same seed, or of their first one."""

    @property
    def test(self) -> str:
        """The test split of the data set that the variant is trained on, or the held-out part in a study."""
        name, split = self.data.split("/")
        return f"{name}/{'held_out' if split == 'learn' else 'test'}"


class Timing(Section):
    """The cost of several variants on one machine: times of training and inference, operations, parameters."""

    variants: tuple[Pattern, ...] = Field(min_length=1)
    """Variants to time, each on its own training set, by name or by pattern."""
    rounds: int = Field(10, ge=1)
    """Number of rounds. Each round times every variant once, in a random order."""
    steps: int = Field(5, ge=1)
    """Training steps, and batches of inference, per variant and round. If training has phases, each phase takes this
    many steps. Their mean time is one measurement."""
    batch_size: int | None = Field(None, ge=1)
    """Images per mini-batch, for all variants. null: each variant's own batch size."""
    networks: Name | None = None
    """Scale whose networks are timed, e.g. `paper`. null: those that are trained."""


class Output(Section):
    """A table or figure, and the results that it shows."""

    title: str
    """Heading."""
    caption: str
    """Text below the table or figure."""
    needs: tuple[Pattern, ...] = ("*",)
    """Variants that it shows, by name or by pattern: `mnist-*` includes the variants on MNIST that you add."""
    whole: bool = False
    """Whether it needs all of these variants: if one of them is left out, so is the table or figure."""
    timings: tuple[Name, ...] = ()
    """Timings that it shows."""


class StudyRow(BaseModel):
    """A named row of a study: what it is of, and the options that it changes, by name."""

    model_config = ConfigDict(extra="allow", frozen=True)

    of: OneOrMoreTexts | None = None
    vary: dict[str, Values] | None = None
    start: str | None = None
    seeds: Seeds | None = None

    @property
    def options(self) -> dict[str, Any]:
        return self.model_extra or {}


class Study(Section):
    """Runs that vary options of some variants, and their table.

    An option is named by its place in a variant, e.g. `training.learning_rate` or `model.routing.iterations`; one of a
    head is `heads.svm.C`. `heads`, `latents` and `probes` alone replace those of the variant.
    """

    title: str = ""
    """Heading of the table. Empty: the study's name."""
    caption: str = ""
    """Text below the table."""
    of: OneOrMoreTexts = ("*",)
    """The variants that it varies, by name or by pattern; in `config.yaml` with the paper: `sparse/sparsecaps`."""
    fixed: dict[str, Any] = {}
    """Options that all rows have, e.g. `{training.steps: 3000}`."""
    vary: dict[str, Values] = {}
    """Options and their values, e.g. `{training.learning_rate: [0.001, 0.002]}`. There is a row for each
    combination."""
    rows: dict[Name, StudyRow] = {}
    """Rows by name, each with the options that it changes. A row may have its own `of`, `vary` and `seeds`. With
    `start: other`, it starts from the trained weights of the row `other` above."""
    seeds: Seeds | None = None
    """Seeds of all rows that have none of their own. null: the scale's."""
    judged: Literal["held-out", "test"] = "held-out"
    """Images that it is judged on. `held-out`: the last sixth of the training images, which no row learns from; they
    take the place of the test images everywhere. `test`: the test images."""
    measure: str | None = Field(None, pattern=r"^\w+:\w+$")
    """A function that returns more numbers of a run, as `module:function` of the paper's package."""
    columns: tuple[str, ...] = ()
    """Metrics in the table. Empty: all accuracies and errors in percent, or all metrics if there are none."""
    figure: str | None = None
    """A metric to draw for all rows; or a function that draws a figure, as `module:function` of the paper's package."""

    @property
    def drawn_by(self) -> str | None:
        """The function of the paper's package that draws the figure, or None if the figure shows a metric."""
        return self.figure if self.figure and ":" in self.figure else None

    @property
    def every_of(self) -> tuple[str, ...]:
        """The variants of all rows, by name or by pattern."""
        rows = self.rows.values() or [StudyRow()]
        return tuple(each for row in rows for each in row.of or self.of)


class Paper(Section):
    """A paper: its variants, their evaluation, its tables and figures."""

    title: str
    """Title of the paper."""
    authors: str
    """Family names of the authors."""
    reference: str
    """Venue or archive number."""
    heads: dict[Name, Head] = {}
    """Classifiers to fit on the variants' latents."""
    protocols: dict[Name, Protocol] = {}
    """Images that heads are fitted and tested on."""
    limits: dict[str, Positive] = {}
    """Largest number of images of a set, from the first, that latents are extracted from where a protocol has no
    `count`. A set is named, or matches a pattern such as `*/train`; the last one counts."""
    variants: dict[Name, Variant]
    """Models to train."""
    timings: dict[Name, Timing] = {}
    """Comparisons of cost. The paper's metrics read all of them."""
    tables: dict[Name, Output] = {}
    """Tables by name. The function `table_1` in the paper's `tables.py` makes `table-1`."""
    figures: dict[Name, Output] = {}
    """Figures by name. The function `figure_2` in the paper's `figures.py` makes `figure-2`."""
    studies: dict[Name, Study] = {}
    """Studies by name: `snakemake ... -- studies` makes them all, `snakemake ... -- sparse.widths` makes one."""

    def head(self, variant: str, head: str) -> Head:
        """The settings of a variant's head."""
        return self.heads[head]

    @property
    def outputs(self) -> dict[str, Output]:
        """The tables and figures by name."""
        return {**self.tables, **self.figures}

    def matching(self, patterns: tuple[str, ...]) -> tuple[str, ...]:
        """The variants that match any of some patterns, in the order of the paper."""
        return tuple(name for name in self.variants if any(fnmatch.fnmatchcase(name, each) for each in patterns))

    @property
    def used_sets(self) -> set[str]:
        """All sets that training, evaluation during training, latents, probes or records read."""
        variants = self.variants.values()
        used = {
            snapshot_of(name)[0] for variant in variants for name in (variant.data, *variant.latents, *variant.images)
        }
        return used | {variant.test for variant in variants if variant.probes or variant.training.evaluate_every}

    def latents_for(self, variant: Variant) -> dict[str, int | None]:
        """The sets that the heads of a variant read, each with the number of images; None: all."""
        found: dict[str, int | None] = {}
        for head, protocols in variant.heads.items():
            for protocol in (self.protocols[each] for each in protocols):
                for part in (protocol.fit if self.heads[head].kind != "argmax" else None, protocol.test):
                    if part is not None:
                        n = part.end or self._limit(snapshot_of(part.set)[0])
                        known = found.get(part.set, 0)
                        found[part.set] = None if n is None or known is None else max(n, known)
        return found

    def _limit(self, set_name: str) -> int | None:
        last_first = reversed(self.limits.items())
        return next((limit for name, limit in last_first if fnmatch.fnmatchcase(set_name, name)), None)

    @model_validator(mode="after")
    def _add_snapshots(self) -> Paper:
        """Add the protocols of snapshots, and test the variants with them."""
        protocols = dict(self.protocols)
        for variant in self.variants.values():
            heads = {}
            for head, names in variant.heads.items():
                added = self.of_snapshots(variant, names)
                protocols = {**added, **protocols}
                heads[head] = tuple(dict.fromkeys([*names, *added]))
            variant.__dict__["heads"] = heads
        self.__dict__["protocols"] = protocols
        return self

    def of_snapshots(self, variant: Variant, names: Iterable[str]) -> dict[str, Protocol]:
        """The protocols that test the snapshots of a variant as some protocols test the trained model."""
        return {
            f"{each.snapshots}-{snapshot}": each.of_snapshot(snapshot, step)
            for each in (self.protocols[name] for name in names if name in self.protocols)
            for snapshot, step in (variant.training.snapshots if each.snapshots else {}).items()
        }

    @model_validator(mode="after")
    def _check_heads(self) -> Paper:
        for name, variant in self.variants.items():
            for each in variant.beside:
                _check_name(f"variants.{name}.beside", "variant", each, self.variants)
            for head, protocols in variant.heads.items():
                _check_name(f"variants.{name}.heads", "head", head, self.heads)
                for protocol in protocols:
                    _check_name(f"variants.{name}.heads.{head}", "protocol", protocol, self.protocols)
                    if self.heads[head].kind != "argmax" and self.protocols[protocol].fit is None:
                        raise ValueError(f"protocols.{protocol}.fit: missing, but head '{head}' must be fitted")
            # Not among the fields that are set, so that a study which changes heads reads no more than these.
            variant.__dict__["latents"] = {**self.latents_for(variant), **variant.latents}
            for each in variant.latents:
                snapshot = snapshot_of(each)[1]
                if snapshot is not None and snapshot not in variant.training.snapshots:
                    raise ValueError(f"variants.{name}: latents of '{each}': {snapshot} is not in training.snapshots")
        return self

    @model_validator(mode="after")
    def _check_outputs(self) -> Paper:
        patterns = {f"timings.{key}.variants": timing.variants for key, timing in self.timings.items()}
        patterns |= {f"{key}.needs": output.needs for key, output in self.outputs.items()}
        for where, pattern in ((where, each) for where, every in patterns.items() for each in every):
            if not self.matching((pattern,)):
                _check_name(where, "variant", pattern, self.variants)
        for key, output in self.outputs.items():
            for name in output.timings:
                _check_name(f"{key}.timings", "timing", name, self.timings)
        return self


def _check_name(where: str, kind: str, name: str, known: Mapping[str, Section]) -> None:
    if name not in known:
        raise ValueError(f"{where}: no {kind} '{name}' in this paper{nearest(name, known)}")
