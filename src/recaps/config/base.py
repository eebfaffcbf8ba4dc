"""The base class of every section of the configuration, and the types of names."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
SetName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*/[a-z_]+$")]

LatentsName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*/[a-z_]+(@[0-9]+)?$")]


def snapshot_of(name: str) -> tuple[str, int | None]:
    """Return the set and the training step of the name of latents: `mnist/test@1000` is ("mnist/test", 1000)."""
    set_name, _, step = name.partition("@")
    return set_name, int(step) if step else None


def _different(seeds: tuple[int, ...]) -> tuple[int, ...]:
    if not seeds:
        raise ValueError("the list is empty; name at least one seed")
    for seed in seeds:
        if seeds.count(seed) > 1:
            raise ValueError(f"{seed} is in the list more than once")
    return seeds


Seeds = Annotated[tuple[Annotated[int, Field(ge=0)], ...], AfterValidator(_different)]


def _increasing(steps: tuple[int, ...]) -> tuple[int, ...]:
    if list(steps) != sorted(set(steps)):
        raise ValueError("the steps do not increase")
    return steps


Steps = Annotated[tuple[Annotated[int, Field(ge=1)], ...], AfterValidator(_increasing)]


class Section(BaseModel):
    """A section of the configuration. It is immutable and rejects unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)
