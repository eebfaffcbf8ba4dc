"""A variant: a model, its data, its training, and what is read from it afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from recaps.config.base import Section
from recaps.config.families import any_family
from recaps.config.training import Training
from recaps.errors import nearest

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
SetName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*/[a-z_]+$")]
ArrayName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]

AnyFamily: Any = any_family()

#: Images that a probe is shown where the configuration gives no number.
PROBE_IMAGES = 32


def _listed(value: Any) -> Any:
    """One name as a list of it."""
    return (value,) if isinstance(value, str) else value


def _counted(value: Any) -> Any:
    """A list of names as a mapping of each to the usual number."""
    if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
        return dict.fromkeys(value, PROBE_IMAGES)
    return value


OneOrMore = Annotated[
    tuple[ArrayName, ...],
    Field(min_length=1),
    BeforeValidator(_listed, json_schema_input_type=ArrayName | tuple[ArrayName, ...]),
]
Counts = Annotated[
    dict[Name, Annotated[int, Field(ge=1)]],
    BeforeValidator(_counted, json_schema_input_type=dict[Name, Annotated[int, Field(ge=1)]] | tuple[Name, ...]),
]


class Part(Section):
    """The part of a latent set that a head is fitted or tested on, in file order."""

    set: SetName
    """Data set and split, e.g. `mnist-40/test`."""
    start: int = Field(0, ge=0)
    """Position of the first image, counted after `digits` has chosen."""
    count: int | None = Field(None, ge=1)
    """Number of images; null: all from `start`."""
    digits: Literal["all", "fit", "test"] = "all"
    """Which originals: `fit` takes the images of six sevenths of the originals, `test` those of the last seventh, so
    that no digit is in both; `all` asks for no such split."""


class Protocol(Section):
    """What a head is fitted on and what it is tested on."""

    title: str
    """One line for tables and records."""
    fit: Part | None = None
    """Ignored by heads that are not fitted (`argmax`)."""
    test: Part


class Head(Section):
    """A classifier on latents."""

    kind: Literal["svm", "linear", "argmax"]
    """`svm`: RBF kernel. `linear`: logistic regression. `argmax`: the model's own class scores, nothing is fitted."""
    features: OneOrMore = ("capsules",)
    """Arrays of the latents, a name or a list of names; several are put side by side, image by image. `scores`: a
    supervised model's class scores. Reading, of the paper `sparse`: `capsules`, the latent capsules as routing gives
    them, which the released code exported; `masked`, no array but `capsules` under the sparse mask, as the paper's text
    says."""
    C: float = Field(100.0, gt=0)
    """Inverse strength of regularisation."""
    gamma: float = Field(0.1, gt=0)
    """Width parameter of the RBF kernel."""
    standardise: bool = False
    """Every feature less its mean and over its deviation on what is fitted, so that `C` means the same whatever the
    features' scale."""


class Variant(Section):
    """A model, a dataset and their hyper-parameters that a paper trains."""

    title: str
    """The name in tables and figures."""
    model: AnyFamily
    """Options of the model's family."""
    data: SetName
    """The set it is trained on."""
    training: Training = Training()
    """How it is trained."""
    latents: dict[SetName, int | None] = {}
    """Sets whose latents are extracted, each with the largest number of images (null: all)."""
    heads: dict[Name, tuple[Name, ...]] = {}
    """For each head, the protocols that it is evaluated in."""
    probes: Counts = {}
    """Arrays read from the trained model for figures, e.g. `single-capsules`: for each the number of test images that
    it is shown, all at once. A list of names means 32 for each."""

    @property
    def test(self) -> str:
        """The test split of the data that it is trained on."""
        return f"{self.data.split('/')[0]}/test"


class Timing(Section):
    """A measurement of the time that a training step takes, of several variants side by side on one machine."""

    variants: tuple[Name, ...] = Field(min_length=1)
    """The variants whose steps are timed, each on its own training set."""
    rounds: int = Field(10, ge=1)
    """Every variant is timed once per round, in an order that is drawn anew for each."""
    steps: int = Field(5, ge=1)
    """Training steps of a variant in one round; their mean is one value."""
    batch_size: int | None = Field(None, ge=1)
    """Images per mini-batch, for all variants alike; null: each variant's own."""


class Output(Section):
    """A table or a figure and the saved results that it is drawn from."""

    title: str
    """Its heading."""
    caption: str
    """What is seen, and what to look for."""
    needs: tuple[Name, ...] | None = None
    """The variants whose runs it shows. null: all of the paper, also those that you add."""
    sets: tuple[SetName, ...] = ()
    """Prepared sets whose images it shows, e.g. `mnist/test`."""
    timings: tuple[Name, ...] = ()
    """The paper's timings that it reads."""


class Paper(Section):
    """A paper: its variants, how they are evaluated, its tables and figures."""

    title: str
    """The paper's title."""
    authors: str
    """Its authors' family names."""
    reference: str
    """Venue or archive number."""
    heads: dict[Name, Head] = {}
    """The classifiers that its variants' latents are judged by."""
    protocols: dict[Name, Protocol] = {}
    """What heads are fitted and tested on."""
    variants: dict[Name, Variant]
    """What it trains."""
    timings: dict[Name, Timing] = {}
    """What it measures of the speed of training; its metrics read all of them."""
    tables: dict[Name, Output] = {}
    """Its tables, by name: `table-1` is filled by `table_1` of the paper's `tables.py`."""
    figures: dict[Name, Output] = {}
    """Its figures, likewise, by functions of its `figures.py`."""

    @property
    def outputs(self) -> dict[str, Output]:
        """Tables and figures."""
        return {**self.tables, **self.figures}

    def shown(self, output: Output) -> tuple[str, ...]:
        """The variants that a table or figure shows."""
        return tuple(self.variants) if output.needs is None else output.needs

    @property
    def shown_sets(self) -> set[str]:
        """The sets whose images its tables and figures show."""
        return {name for output in self.outputs.values() for name in output.sets}

    @property
    def used_sets(self) -> set[str]:
        """All sets that it trains on, tests on while it trains, extracts latents of, probes with, or shows."""
        variants = self.variants.values()
        used = {name for variant in variants for name in (variant.data, *variant.latents)}
        tested = {variant.test for variant in variants if variant.probes or variant.training.evaluate_every}
        return used | tested | self.shown_sets

    @model_validator(mode="after")
    def _check_heads(self) -> Paper:
        for name, variant in self.variants.items():
            for head, protocols in variant.heads.items():
                _check_name(f"variants.{name}.heads", "head", head, self.heads)
                for protocol in protocols:
                    _check_name(f"variants.{name}.heads.{head}", "protocol", protocol, self.protocols)
                    spec = self.protocols[protocol]
                    fitted = self.heads[head].kind != "argmax"
                    if fitted and spec.fit is None:
                        raise ValueError(f"protocols.{protocol}.fit: missing, and head '{head}' must be fitted")
                    for part in (spec.fit if fitted else None, spec.test):
                        if part and part.set not in variant.latents:
                            raise ValueError(f"variants.{name}.latents: lacks '{part.set}', needed by '{protocol}'")
        return self

    @model_validator(mode="after")
    def _check_outputs(self) -> Paper:
        for key, timing in self.timings.items():
            for variant in timing.variants:
                _check_name(f"timings.{key}.variants", "variant", variant, self.variants)
        for key, output in self.outputs.items():
            for variant in output.needs or ():
                _check_name(f"{key}.needs", "variant", variant, self.variants)
            for name in output.timings:
                _check_name(f"{key}.timings", "timing", name, self.timings)
        return self


def _check_name(where: str, kind: str, name: str, known: Mapping[str, Section]) -> None:
    if name not in known:
        raise ValueError(f"{where}: no {kind} '{name}' in this paper{nearest(name, known)}")
