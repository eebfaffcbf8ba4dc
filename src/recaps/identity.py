"""What makes a result new: its settings, its data, and the modules that compute its numbers.

An identity is a dict of three parts, which the record of every result holds:

- `settings`: the settings that matter, by name;
- `data`: digests of what it is made from, by file or set;
- `modules`: digests of the modules that compute its numbers, by name.

A result is that of the plan if `differences` finds none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from recaps.config.families import families
from recaps.config.heads import Head, Protocol
from recaps.config.training import Training

Identity = Mapping[str, Mapping[str, Any]]

_NONE = object()

#: Ends of the names of settings that change no number.
BOOKKEEPING = ("training.tensorboard",)

#: Options that have moved, from a section and name to another section and name.
MOVED = {("model", "warmup_steps"): ("training", "warmup")}


def differences(was: Identity, now: Identity) -> list[str]:
    """Return what differs, a text each: a setting, a set or file, a module; and from what to what.

    An option that `was` lacks, because it is newer, has its default there. A part that one of the two lacks is not
    compared, nor are data with the digest None: a plan knows no digests of data that are not there.
    """
    parts = {part: compared for part, compared in _PARTS.items() if part in was and part in now}
    return [text for part, compared in parts.items() for text in compared(was[part], now[part])]


def of_split(record: Mapping[str, Any]) -> str:
    """Return the digest of a prepared split from its record: its arrays, and how images are made from them."""
    about = [record.get(name) for name in ("digest", "seed", "parameters")]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def key(identity: Identity) -> str:
    """Return eight hexadecimal digits that stand for an identity."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:8]


def _settings(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    # As JSON, in which a tuple is a list and all keys are texts.
    before, after = (dict(_flat(json.loads(json.dumps(each)))) for each in (as_today(was), now))
    for name in dict.fromkeys([*before, *after]):
        if name.endswith(BOOKKEEPING):
            continue
        old, new = before.get(name, _NONE), after.get(name, _NONE)
        if old != new:
            yield f"{name}: {_text(old)} -> {_text(new)}"


def _data(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys([*was, *now]):
        old, new = was.get(name, _NONE), now.get(name, _NONE)
        if None in (old, new) or old == new:
            continue
        if _NONE in (old, new):
            yield f"{name} is {'now' if old is _NONE else 'no longer'} an input"
        else:
            yield f"{name} changed ({str(old)[:8]} -> {str(new)[:8]})"


def _modules(was: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """A module that is no longer used is no difference: either its user changed, or it computed nothing."""
    for name, digest in now.items():
        if was.get(name) != digest:
            yield f"{name} changed ({was[name][:8]} -> {digest[:8]})" if name in was else f"{name} is new"


_PARTS = {"settings": _settings, "data": _data, "modules": _modules, "device": _settings}


def as_today(values: Any) -> Any:
    """Return settings with their options where they are today, and with today's defaults of those that they lack."""
    if not isinstance(values, Mapping):
        return values
    filled = {name: as_today(each) for name, each in _moved(values).items()}
    for name, section in (("training", Training), ("head", Head), ("protocol", Protocol)):
        if isinstance(filled.get(name), Mapping):
            filled[name] = _validated(section, filled[name])
    if isinstance(model := filled.get("model"), Mapping) and model.get("family") in families():
        filled["model"] = _validated(families()[model["family"]], model)
    return filled


def _moved(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Move options to the places that they have today."""
    for (section, name), (other, new) in MOVED.items():
        there = values.get(section)
        if isinstance(there, Mapping) and name in there and isinstance(values.get(other), Mapping):
            rest = {key: value for key, value in there.items() if key != name}
            values = {**values, section: rest, other: {**values[other], new: there[name]}}
    return values


def _validated(section: type[BaseModel], values: Mapping[str, Any]) -> Any:
    try:
        return section.model_validate(values).model_dump(mode="json")
    except ValidationError:
        return values  # an option that is no more


def _flat(values: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value with its path, e.g. `training.steps`."""
    if isinstance(values, Mapping) and values:
        for name, each in values.items():
            yield from _flat(each, f"{above}.{name}" if above else str(name))
    else:
        yield above, values


def _text(value: Any) -> str:
    if value is _NONE:
        return "(none)"
    text = json.dumps(value)
    return text if len(text) < 60 else f"{text[:57]}..."
