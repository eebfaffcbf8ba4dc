"""The routing algorithms by name: those of `recaps.nn.routing.options`, and classes of any module as `module:Class`.

A class is imported when a model is built, or to read the options of one that is not of this project: importing PyTorch
takes a second, which a check of the configuration should not cost.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import partial, reduce
from operator import attrgetter, or_
from typing import Annotated, Any

from pydantic import Field, SerializeAsAny, WrapValidator

from recaps.errors import UserError
from recaps.nn.routing import options
from recaps.nn.routing.options import PoseOptions, RoutingOptions, VoteOptions

INTERFACES: dict[str, type[RoutingOptions]] = {"VoteRouting": VoteOptions, "PoseRouting": PoseOptions}


def algorithms(interface: str) -> dict[str, type[RoutingOptions]]:
    """Return the options of the algorithms of an interface, `VoteRouting` or `PoseRouting`, by their names."""
    kinds = [each for each in vars(options).values() if isinstance(each, type) and issubclass(each, RoutingOptions)]
    return {each().name: each for each in kinds if each.routing and issubclass(each, INTERFACES[interface])}


def settings(interface: str) -> Any:
    """Return the type of the options of any algorithm; its field `name` selects the algorithm.

    A string stands for the algorithm of that name with default options.
    """
    any_of: Any = Annotated[reduce(or_, algorithms(interface).values()), Field(discriminator="name")]
    own: Any = SerializeAsAny()  # type: ignore[type-arg]
    return Annotated[any_of, own, WrapValidator(partial(_chosen, interface=interface))]


def _chosen(value: Any, known: Any, *, interface: str) -> Any:
    """Return options, where a string stands for a name; refuse an algorithm of another interface."""
    chosen = {"name": value} if isinstance(value, str) else value
    name = chosen.get("name") if isinstance(chosen, Mapping) else None
    if isinstance(value, INTERFACES[interface]):
        return value
    own = algorithms(interface)
    if isinstance(name, str) and ":" in name and name not in own:
        return _own_options(dict(chosen), name, interface)
    if isinstance(name, str) and name not in own and any(name in algorithms(other) for other in INTERFACES):
        raise ValueError(f"'{name}' routes other capsules than those of this family (valid: {', '.join(own)})")
    return known(chosen)


def _own_options(chosen: dict[str, Any], name: str, interface: str) -> RoutingOptions:
    """Return the options of a class of any module, as its attribute `Options` describes them."""
    from recaps.config.reading import check

    if (found := interface_of(name)) != interface:
        raise ValueError(f"'{name}' is a {found}, but this family needs a {interface}")
    try:
        return check(load(name).Options, chosen, name)
    except UserError as error:
        raise ValueError(str(error)) from error


def name_of(routing: type) -> str:
    """Return the name of a class: that of the algorithm if it is one of this project, else `module:Class`."""
    path = f"{routing.__module__}:{routing.__qualname__}"
    every = {each.routing: name for interface in INTERFACES for name, each in algorithms(interface).items()}
    return every.get(path, path)


def interface_of(name: str) -> str:
    """Return the interface of an algorithm by its name, `VoteRouting` or `PoseRouting`; empty if there is none.

    Raises:
        ValueError: `name` is `module:Class`, but no class of a routing.
    """
    found = next((each for each in INTERFACES if name in algorithms(each)), "")
    if found or ":" not in name:
        return found
    bases = [base.__name__ for base in getattr(load(name), "__mro__", ())]
    found = next((each for each in INTERFACES if each in bases), "")
    if not found:
        raise ValueError(f"'{name}' is no subclass of {' or '.join(INTERFACES)} of recaps.nn.routing.interface")
    return found


def load(path: str) -> Any:
    """Import a class by `module:Class`. Raise ValueError if that fails."""
    where, _, name = path.partition(":")
    try:
        return attrgetter(name)(importlib.import_module(where))
    except Exception as error:
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(
            f"'{path}' cannot be imported ({cause}); name a class at the top of a module that Python finds"
        ) from error


def module(chosen: RoutingOptions) -> str:
    """Return the module of the algorithm in `chosen`, its options."""
    return chosen.path.partition(":")[0]


def build(chosen: RoutingOptions, *arguments: Any) -> Any:
    """Return the routing layer of the options `chosen`; `arguments` are those of its interface."""
    return load(chosen.path)(*arguments, chosen)
