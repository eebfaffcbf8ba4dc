"""Read YAML files, merge and validate settings, and report a mistake in one line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from recaps.config.workflow import TEXT
from recaps.errors import UserError, nearest
from recaps.io import short

Model = TypeVar("Model", bound=BaseModel)

#: Names of the validation library's own types, which it adds to the path of a mistake.
_INTERNAL = re.compile(r"(constrained|function|lax|nullable|union|tuple|json|tagged)[-\[].*")

#: The safe loader in C, ten times as fast, where PyYAML was built with it.
_SAFE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SAFE):  # type: ignore[misc]
    """The safe loader, which refuses keys that are there twice, and numbers that are no decimal ones."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if (key.tag, key.value) in seen:
                    raise _refused(key, f"the key '{key.value}' is there twice")
                seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)

    def number(self, node: Any) -> Any:
        """Read a whole number. In YAML 1.1, 010 is 8 and 1:30 is 90."""
        if re.match(r"[-+]?0[0-9]", node.value) or ":" in node.value:
            raise _refused(node, f"{node.value} is no plain decimal number; write it without leading zeros or colons")
        return self.construct_yaml_int(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.number)
# In YAML 1.1, 1e-3 is text, as it has no point.
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"), [*"-+0123456789"])


def _refused(node: Any, message: str) -> yaml.YAMLError:
    return yaml.YAMLError(f"line {node.start_mark.line + 1}: {message}")


def merge(base: Any, change: Any) -> Any:
    """Merge two mappings, and the mappings in them; `change` replaces anything else.

    A section with another `name`, such as that of a routing, replaces the section: their options differ.
    """
    if isinstance(base, str) and isinstance(change, Mapping):
        base = {"name": base}
    if isinstance(base, Mapping) and isinstance(change, Mapping):
        if base.get("name") != change.get("name", base.get("name")):
            return change
        merged = dict(base)
        for key, value in change.items():
            merged[key] = merge(base[key], value) if key in base else value
        return merged
    return change


def merged(sources: Iterable[Path | Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the settings of several sources, files or mappings. Later sources override earlier ones.

    A missing file has no settings: Snakemake has already reported those that the user named.
    """
    values: dict[str, Any] = {}
    for source in sources:
        if isinstance(source, Mapping):
            values = merge(values, source)
        elif source.exists():
            values = merge(values, read_yaml(source))
    return values


def read_yaml(file: Path) -> dict[str, Any]:
    try:
        text = Path(file).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UserError(f"{short(file)}: no such file") from error
    except OSError as error:
        raise UserError(f"{short(file)}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{short(file)}: not UTF-8 text; save it in this encoding") from error
    return mapping(text, str(short(file)))


def mapping(text: str, where: str) -> dict[str, Any]:
    """Parse YAML. Text that is not a mapping raises UserError with `where`."""
    try:
        values = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date such as 2020-99-99
        prefix = "" if type(error) is yaml.YAMLError else "not valid YAML: "
        raise UserError(f"{where}: {prefix}{' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise UserError(f"{where}: expected a mapping of keys to values")
    return values


def check(model: type[Model], values: Any, where: str) -> Model:
    """Validate `values`. A mistake raises UserError with `where`, the key and the nearest valid key."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{where}: {_first_line(error, model)}") from error


def _first_line(error: ValidationError, model: type[BaseModel]) -> str:
    # A misspelt key of a required setting causes two errors. "Unknown key" is more helpful than "missing".
    first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    path, keys = _locate(model, [str(part) for part in first["loc"]])
    key = ".".join(path)
    if first["type"] == "extra_forbidden":
        return f"unknown key '{key}'{nearest(path[-1], keys)}"
    if first["type"] == "union_tag_invalid":
        tags = [tag.strip("' ") for tag in first["ctx"]["expected_tags"].split(",")]
        kind = "family" if "family" in first["ctx"]["discriminator"] else path[-1]
        return f"{key}: there is no {kind} '{first['ctx']['tag']}'{nearest(first['ctx']['tag'], tags)}"
    if first["type"] == "union_tag_not_found":
        return f"{key}: {first['ctx']['discriminator']} is missing"
    if path[-1:] == ["[key]"]:
        return f"{'.'.join(path[:-1])}: a name consists of lower-case letters, digits and dashes"
    if first["type"] == "string_pattern_mismatch":
        return f"{key}: {_misspelt(first['input'], first['ctx']['pattern'])}"
    message = str(first["msg"]).removeprefix("Value error, ").replace("a valid tuple", "a list")
    message = re.sub(r"a valid dictionary.*", "a mapping", message)
    if first["type"] == "tuple_type" and isinstance(first["input"], str):
        is_range = re.fullmatch(r"[0-9]+[^0-9,]+[0-9]+", first["input"])
        message += f", such as [{'0, 1, 2' if is_range else first['input']}]"
    elif message.startswith("Input should"):
        text = first["type"] == "string_type" and isinstance(first["input"], date | int | float)
        message += f", not {first['input']}; write it in quotes" if text else f", not {first['input']!r}"
    return f"{key}: {message}" if key else message


def _misspelt(name: str, pattern: str) -> str:
    near = re.sub(r"[\s_]+", "-", name.strip().lower())
    hint = f" (did you mean '{near}'?)" if re.fullmatch(pattern, near) else ""
    form = "two names with / between them" if "/" in pattern else "a name"
    return f"'{name}' is not {form}, of lower-case letters, digits and dashes{hint}"


def _locate(model: type[BaseModel], path: list[str]) -> tuple[list[str], list[str]]:
    """Return the path as the user wrote it, and the valid keys of the section that holds its last part.

    Pydantic's paths contain the tags of unions (`model.supcaps.capsules`); the user's file does not. The function
    follows the path through the JSON schema.
    """
    schema = model.model_json_schema()
    node = schema
    written: list[str] = []
    keys: list[str] = []
    for part in path:
        node = _resolve(node, schema.get("$defs", {}))
        tags = node.get("discriminator", {}).get("mapping", {})
        if part in tags:
            node = {"$ref": tags[part]}
            continue
        if part in (TEXT, node.get("title")) or _INTERNAL.fullmatch(part):
            continue
        written.append(part)
        keys = list(node.get("properties", {}))
        node = _child(node, part)
    return written, keys


def _resolve(node: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Follow references, and unions of one section with null or text (`Part | None`)."""
    while True:
        every = node.get("anyOf", node.get("oneOf", ()))
        choices = [choice for choice in every if choice.get("type") not in ("null", "string")]
        if "$ref" in node:
            node = definitions[node["$ref"].rsplit("/", 1)[-1]]
        elif len(choices) == 1:
            node = choices[0]
        else:
            return node


def _child(node: dict[str, Any], part: str) -> dict[str, Any]:
    """Return the schema of a key: its own, or, where the user chooses the keys, that of all keys."""
    named = list(node.get("patternProperties", {}).values())
    child = node.get("properties", {}).get(part) or (named[0] if named else node.get("additionalProperties"))
    return child if isinstance(child, dict) else {}
