"""The routing algorithms by name, and their options as typed settings.

The registry reads the modules of this folder and imports a module only when a model is built. Importing PyTorch takes a
second, which a check of the configuration should not cost.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Mapping
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, create_model

from recaps.config.base import Section

FOLDER = Path(__file__).parent
INTERFACES = ("VoteRouting", "PoseRouting")


@cache
def algorithms(interface: str) -> dict[str, type[Section]]:
    """Return the settings of the algorithms of an interface, `VoteRouting` or `PoseRouting`, by their names."""
    found = {file.stem: _class(file) for file in sorted(FOLDER.glob("*.py"))}
    return {name: _settings(name, node) for name, (node, kind) in found.items() if node and kind == interface}


def settings(interface: str) -> Any:
    """Return the type of the settings of any algorithm; its field `name` selects the algorithm.

    A string stands for the algorithm of that name with default options.
    """
    either: Any = reduce(or_, algorithms(interface).values())
    any_of: Any = Annotated[either, Field(discriminator="name")]
    return Annotated[any_of, BeforeValidator(lambda value: _chosen(value, interface))]


def _chosen(value: Any, interface: str) -> Any:
    """Return settings, where a string stands for a name; refuse an algorithm of another interface."""
    chosen = {"name": value} if isinstance(value, str) else value
    name = chosen.get("name") if isinstance(chosen, Mapping) else None
    own = algorithms(interface)
    if isinstance(name, str) and name not in own and any(name in algorithms(other) for other in INTERFACES):
        raise ValueError(f"'{name}' routes other capsules than those of this family (valid: {', '.join(own)})")
    return chosen


def module(chosen: Any) -> str:
    """Return the module of the algorithm in `chosen`, its settings."""
    return f"{__package__}.{chosen.name}"


def build(chosen: Any, *arguments: Any) -> Any:
    """Return the routing layer of the settings `chosen`; `arguments` are those of its interface."""
    node, _ = _class(FOLDER / f"{chosen.name}.py")
    assert node is not None, f"{chosen.name} has no routing"
    routing = getattr(importlib.import_module(module(chosen)), node.name)
    return routing(*arguments, **chosen.model_dump(exclude={"name"}))


def __getattr__(name: str) -> Any:
    """Return the settings with this class name: pickle looks for their class in this module."""
    for settings in (each for interface in INTERFACES for each in algorithms(interface).values()):
        if settings.__name__ == name:
            return settings
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _fields(interface: str, name: str) -> list[str]:
    found = algorithms(interface).get(name)
    return list(found.model_fields) if found else []


def _class(file: Path) -> tuple[ast.ClassDef | None, str]:
    """Return the class of a module that implements an interface, if it has one, and the name of the interface."""
    tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    found = [(node, name) for node in classes for name in map(_last, node.bases) if name in INTERFACES]
    assert len(found) < 2, f"{file.name} has several routings; write one module for each"
    return found[0] if found else (None, "")


def _last(base: ast.expr) -> str:
    """`PoseRouting` for `PoseRouting` and for `interface.PoseRouting`."""
    return ast.unparse(base).rpartition(".")[2]


def _settings(name: str, node: ast.ClassDef) -> type[Section]:
    """Return the keyword-only arguments of a class's constructor as a section of the configuration."""
    text = ast.get_docstring(node) or ""
    meanings = {key: " ".join(meaning.split()) for key, meaning in _ARGUMENT.findall(text)}
    makers = [each.args for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
    options = [pair for each in makers for pair in zip(each.kwonlyargs, each.kw_defaults, strict=True)]
    words = {"Annotated": Annotated, "Field": Field, "Literal": Literal}
    fields: dict[str, Any] = {"name": (Literal[name], name)}
    for argument, default in options:
        assert argument.annotation is not None, f"{name}: {argument.arg} has no type"
        value = ... if default is None else ast.literal_eval(default)
        kind = eval(ast.unparse(argument.annotation), words)
        fields[argument.arg] = (kind, Field(value, description=meanings.get(argument.arg, "")))
    made: type[Section] = create_model(
        f"{node.name}Settings",
        __base__=Section,
        __doc__=text.split("\n")[0],
        # Pydantic would look for the source of these fields, which takes longer than all the rest.
        __cls_kwargs__={"use_attribute_docstrings": False},
        **fields,
    )
    return made


#: An entry of the section `Args` in a docstring: `name: meaning`. Further lines of the meaning are indented deeper.
_ARGUMENT = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
