"""The model families: every class of options in `recaps.models.options` and in a paper's `options.py`."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from functools import cache
from typing import ClassVar

from recaps import papers
from recaps.config.base import Section


class ModelOptions(Section):
    """Options of a model family.

    A family is a subclass with a field `family: Literal["name"] = "name"`. Its module must not import PyTorch, because
    every check of a configuration imports it.
    """

    module: ClassVar[str]
    """The module whose function `build(options, image_shape, classes)` makes the model."""
    of_probes: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """By probe, the options that it reads and training does not. Rows of a study that differ in them share a trained
    model."""

    @property
    def modules(self) -> list[str]:
        """The modules that are imported by name to build the model; no import statement refers to them."""
        return [self.module, type(self).__module__]

    def unread(self, probes: Collection[str] = ()) -> set[str]:
        """Return the options that neither training nor any of some probes reads."""
        read = {option for probe in probes for option in self.of_probes.get(probe, ())}
        return {option for options in self.of_probes.values() for option in options} - read

    def check_classes(self, classes: int) -> None:
        """Raise UserError if the model cannot have this number of classes."""


@cache
def families() -> dict[str, type[ModelOptions]]:
    """Return the options of every family by the family's name."""
    own = [paper for paper in papers.names() if (papers.FOLDER / paper / "options.py").is_file()]
    modules = ["recaps.models.options", *(f"recaps.papers.{paper}.options" for paper in own)]
    found = [
        value
        for module in modules
        for value in vars(importlib.import_module(module)).values()
        if isinstance(value, type) and issubclass(value, ModelOptions) and "family" in value.model_fields
    ]
    return {each.model_fields["family"].default: each for each in found}
