"""The base class of every section of the configuration, and the types of names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
VariantName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*/[a-z0-9][a-z0-9-]*$")]
SetName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*/[a-z_]+$")]
LatentsName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*/[a-z_]+(@[a-z0-9][a-z0-9-]*)?$")]


def snapshot_of(name: str) -> tuple[str, str | None]:
    """Return the set and the snapshot of the name of latents: `mnist/test@1000` is ("mnist/test", "1000")."""
    set_name, _, snapshot = name.partition("@")
    return set_name, snapshot or None


def _different(seeds: tuple[int, ...]) -> tuple[int, ...]:
    if not seeds:
        raise ValueError("the list is empty; name at least one seed")
    for seed in seeds:
        if seeds.count(seed) > 1:
            raise ValueError(f"{seed} is in the list more than once")
    return seeds


Seeds = Annotated[tuple[Annotated[int, Field(ge=0)], ...], AfterValidator(_different)]


def _by_name(value: Any) -> Any:
    """Return a list of steps as a mapping: each step is its own name."""
    if not isinstance(value, list | tuple):
        return value
    if list(value) != sorted(set(value)):
        raise ValueError("the steps do not increase")
    return {str(step): step for step in value}


Positive = Annotated[int, Field(ge=1)]
Steps = Annotated[
    dict[Name, Positive], BeforeValidator(_by_name, json_schema_input_type=dict[Name, Positive] | tuple[Positive, ...])
]


def _ascending(bounds: tuple[float, float]) -> tuple[float, float]:
    if bounds[0] > bounds[1]:
        raise ValueError(f"{bounds[0]:g} is larger than {bounds[1]:g}; give the smaller number first")
    return bounds


def expanded(path: str) -> str:
    """Return a path with `~` and `$NAME` replaced. Refuse what makes folders that nobody wants."""
    found = os.path.expandvars(os.path.expanduser(path))
    if not found.strip():
        raise ValueError("the path is empty")
    if "$" in found:
        raise ValueError(f"'{path}' names a variable that is not set")
    if found.startswith("~"):
        raise ValueError(f"'{path}' names a user that is not there")
    if found != found.strip():
        raise ValueError(f"{path!r} begins or ends with a space")
    if "\\" in found:
        raise ValueError(f"{path!r} contains a backslash; separate folders by /")
    if bad := [each for each in found if each in "{}" or not each.isprintable()]:
        raise ValueError(f"{path!r} contains {bad[0]!r}, which Snakemake cannot have in the name of a file")
    return found


FilePath = Annotated[str, AfterValidator(expanded)]

Range = Annotated[tuple[float, float], AfterValidator(_ascending)]
_Share = Annotated[float, Field(ge=0, le=1)]
Shares = Annotated[tuple[_Share, _Share], AfterValidator(_ascending)]


class Section(BaseModel):
    """A section of the configuration. It is immutable and rejects unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_booleans(cls, values: Any) -> Any:
        """Refuse `true` where a number belongs, which Python takes for 1; YAML reads `yes` and `on` as `true`."""
        for name, value in values.items() if isinstance(values, Mapping) else ():
            found = [each for each in (value if isinstance(value, list | tuple) else [value]) if isinstance(each, bool)]
            if found and name in cls.model_fields and _is_number(cls.model_fields[name].annotation):
                raise ValueError(f"{name}: {str(found[0]).lower()} is no number")
        return values


def _is_number(annotation: Any) -> bool:
    """Whether a type is a number, or consists of numbers and of nothing else that could be true."""
    parts = get_args(annotation)
    return annotation in (int, float) or (any(map(_is_number, parts)) and bool not in parts)
