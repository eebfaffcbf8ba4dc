"""The routing algorithms by name, and their options as typed settings.

Modules are read, not imported, until a model is built: importing PyTorch takes a second, which checking a configuration
should not cost.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator, Mapping
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, create_model

from recaps.config.base import Section

FOLDER = Path(__file__).parent


@cache
def algorithms(interface: str) -> dict[str, type[Section]]:
    """The settings of every algorithm of an interface (`VoteRouting` or `PoseRouting`), by the algorithm's name."""
    return {
        file.stem: _settings(file.stem, node)
        for file in sorted(FOLDER.glob("*.py"))
        for node in _classes(file)
        if interface in map(ast.unparse, node.bases)
    }


def settings(interface: str) -> Any:
    """The type of any algorithm's settings; the field `name` tells which. A name alone stands for its defaults."""
    either: Any = reduce(or_, algorithms(interface).values())
    any_of: Any = Annotated[either, Field(discriminator="name")]
    return Annotated[any_of, BeforeValidator(lambda value: {"name": value} if isinstance(value, str) else value)]


def module(chosen: Any) -> str:
    """The module of the algorithm that some settings name."""
    return f"{__package__}.{chosen.name}"


def build(chosen: Any, *arguments: Any) -> Any:
    """The algorithm that some settings name; `arguments` are those of its interface."""
    found = importlib.import_module(module(chosen))
    (name,) = (node.name for node in _classes(FOLDER / f"{chosen.name}.py") if _interface(node))
    return getattr(found, name)(*arguments, **chosen.model_dump(exclude={"name"}))


def moved(values: Any, keys: Mapping[str, str], default: str) -> Any:
    """Settings of a model in which options of its routing stand where they stood before `routing` was a section.

    Args:
        values: what the user wrote.
        keys: the old key of each option, and its new one within `routing`. Options of other algorithms are dropped, as
            they had no effect.
        default: the algorithm where none is named.
    """
    if not isinstance(values, Mapping) or not keys.keys() & values.keys():
        return values
    routing = values.get("routing", {})
    routing = {"name": default} | ({"name": routing} if isinstance(routing, str) else dict(routing))
    known = {key for kind in ("VoteRouting", "PoseRouting") for key in _fields(kind, routing["name"])}
    options = {new: values[old] for old, new in keys.items() if old in values and new in known}
    return {key: value for key, value in values.items() if key not in keys} | {"routing": routing | options}


def _fields(interface: str, name: str) -> list[str]:
    found = algorithms(interface).get(name)
    return list(found.model_fields) if found else []


def _classes(file: Path) -> Iterator[ast.ClassDef]:
    tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    return (node for node in tree.body if isinstance(node, ast.ClassDef))


def _interface(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base) in ("VoteRouting", "PoseRouting") for base in node.bases)


def _settings(name: str, node: ast.ClassDef) -> type[Section]:
    """The keyword-only arguments of a class's constructor as a section of the configuration."""
    text = ast.get_docstring(node) or ""
    told = {key: " ".join(meaning.split()) for key, meaning in _ARGUMENT.findall(text)}
    makers = [each.args for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
    options = [pair for each in makers for pair in zip(each.kwonlyargs, each.kw_defaults, strict=True)]
    words = {"Annotated": Annotated, "Field": Field, "Literal": Literal}
    fields: dict[str, Any] = {"name": (Literal[name], name)}
    for argument, default in options:
        assert argument.annotation is not None, f"{name}: {argument.arg} has no type"
        value = ... if default is None else ast.literal_eval(default)
        kind = eval(ast.unparse(argument.annotation), words)
        fields[argument.arg] = (kind, Field(value, description=told.get(argument.arg, "")))
    made: type[Section] = create_model(f"{node.name}Settings", __base__=Section, __doc__=text.split("\n")[0], **fields)
    return made


#: An entry of a docstring's list of arguments: `name: meaning`, the meaning on further, deeper lines.
_ARGUMENT = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
