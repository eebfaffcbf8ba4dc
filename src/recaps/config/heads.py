"""Settings of heads, and of the images that they are fitted and tested on.

They are apart from a paper's other settings, so that a job that fits a head does not import the options of all models.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from recaps.config.base import LatentsName, Name, Section

ArrayName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]


def listed(value: Any) -> Any:
    """Return a single name as a list."""
    return (value,) if isinstance(value, str) else value


OneOrMore = Annotated[
    tuple[ArrayName, ...],
    Field(min_length=1),
    BeforeValidator(listed, json_schema_input_type=ArrayName | tuple[ArrayName, ...]),
]


class Part(Section):
    """A range of the images in a set of latents, in file order, to fit or test a head on."""

    set: LatentsName
    """Data set and split, e.g. `mnist-40/test`; with `@1000`, the latents of the snapshot `1000`."""
    start: int = Field(0, ge=0)
    """Position of the first image among those that `digits` selects."""
    count: int | None = Field(None, ge=1)
    """Number of images. null: all from `start` on."""
    digits: Literal["all", "fit", "test"] = "all"
    """Selects images by their original digit. `fit`: six of every seven originals. `test`: the seventh. An original is
    in one of the two only. `all`: no selection."""
    per_class: int | None = Field(None, ge=1)
    """Images of each class to fit on, drawn at random from the range. null: the whole range."""
    draws: int = Field(1, ge=1)
    """Number of random draws with `per_class`. A classifier is fitted on each; the accuracy is their mean."""

    @property
    def end(self) -> int | None:
        """The number of images of the set that it needs, from the first; None: all."""
        return None if self.count is None or self.digits != "all" else self.start + self.count


class Protocol(Section):
    """The images that a head is fitted and tested on."""

    title: str
    """One line for the report."""
    fit: Part | None = None
    """Images to fit on. Heads that are not fitted (`argmax`) ignore it."""
    test: Part
    """Images to test on."""
    snapshots: Name | None = None
    """Name of the same protocol for snapshots. With `affnist-a`, each variant that is tested with this protocol is also
    tested with `affnist-a-1000`, on the latents of its snapshot `1000`, if it has one; and so on."""

    def of_snapshot(self, name: str, step: int) -> Protocol:
        """The same protocol for the snapshot `name`, after a step."""
        parts = {"fit": self.fit, "test": self.test}
        moved = {key: part and part.model_copy(update={"set": f"{part.set}@{name}"}) for key, part in parts.items()}
        return self.model_copy(update={**moved, "title": f"{self.title}, after {step:,} steps", "snapshots": None})

    @model_validator(mode="after")
    def _check_draws(self) -> Protocol:
        for part, name in ((self.fit, "fit"), (self.test, "test")):
            if part and part.draws > 1 and part.per_class is None:
                raise ValueError(f"{name}.draws: nothing is drawn; set per_class, too")
        if self.test.per_class is not None:
            raise ValueError("test.per_class: only images to fit on are drawn; move it to fit")
        return self


class Head(Section):
    """A classifier on latents."""

    kind: Literal["svm", "linear", "argmax"]
    """`svm`: support vector machine with an RBF kernel. `linear`: logistic regression. `argmax`: the model's own class
    scores; nothing is fitted."""
    features: OneOrMore = ("capsules",)
    """Array of the latents, or a list of arrays to concatenate. `scores`: the class scores of a supervised model.
    Reading, in the paper `sparse`: `capsules`, the output of routing, as the released code exports it; or `masked`,
    `capsules` times the sparse `mask`, as the paper's text says."""
    C: float = Field(100.0, gt=0)
    """Inverse strength of regularisation."""
    gamma: Annotated[float, Field(gt=0)] | Literal["scale"] = 0.1
    """Coefficient of the RBF kernel. `scale`: 1 / (number of features * their variance), as in scikit-learn."""
    standardise: bool = False
    """Scale every feature to mean 0 and standard deviation 1 on the fitted images, so that `C` does not depend on the
    features' scale."""
