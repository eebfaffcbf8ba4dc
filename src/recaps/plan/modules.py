"""Digests of code: of given modules and of all modules of this package that they import.

They tell which code a result was computed with. Editing EM routing makes the EM runs new; editing a figure makes no run
new. Comments, docstrings, formatting, what is printed or logged, texts of errors, and annotations of arguments do not
change a digest.
Housekeeping has none: settings count by their values, and leases, records and the like compute nothing.

All import statements count, also those inside functions, except those for type checking only. `from package import
name` leads to the module that defines `name`. Of the packages on the way, only their own text counts, and that of the
first does not. Style sheets and templates belong to the modules of their folder. Modules that are imported by a
computed name must be given as roots. A root of another package, such as a user's routing, counts with what it imports
from that package and from this one.

The digests are kept in the package's `__pycache__` until one of its files changes.
"""

from __future__ import annotations

import ast
import atexit
import fnmatch
import functools
import hashlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import recaps
from recaps.errors import TryAgain, UserError
from recaps.io import read_json, write_json

#: Endings of files that belong to the modules of their folder.
TEMPLATES = (".css", ".j2", ".mplstyle")

#: Modules that compute no number, and all below them, as patterns.
HOUSEKEEPING = (
    "recaps.checkout",
    "recaps.command",
    "recaps.config",
    "recaps.config.*",
    "recaps.datasets.archive",
    "recaps.datasets.catalogue",
    "recaps.datasets.checksums",
    "recaps.datasets.download",
    "recaps.datasets.sources",
    "recaps.errors",
    "recaps.identity",
    "recaps.io",
    "recaps.layout",
    "recaps.locks",
    "recaps.nn.routing.registry",
    "recaps.npz",
    "recaps.papers",
    "recaps.provenance",
    "recaps.training.checkpoint",
    "recaps.training.interruption",
    "recaps.training.lease",
    "recaps.training.loop",
    "recaps.training.machine",
    "recaps.training.run",
    "recaps.training.saved",
    "recaps.plan",
    "recaps.plan.*",
    "*.options",
)
#: Calls that only tell something.
MESSAGES = {
    "print",
    "warnings.warn",
    *(f"{log}.{level}" for log in ("log", "_log") for level in ("debug", "info", "warning", "error")),
}


def modules(roots: Sequence[str], package: Path | None = None) -> dict[str, str]:
    """Return the digests of `roots` and of the modules that they import, 16 hexadecimal digits each, by name.

    Args:
        roots: names of modules (`recaps.training.step`) or of functions (`recaps.plan.stages:draw_tables`). Of a
            function's module, only the function and the statements that it depends on count.
        package: the folder of the package; this one by default.

    Raises:
        ValueError: the package has no such module or function.
    """
    return dict(_kept(package or Path(recaps.__file__).parent).of(tuple(roots)))


def edited(digests: Mapping[str, str]) -> list[str]:
    """Return which modules are no longer as they were when their digests were computed, perhaps by another process."""
    now = Kept(Path(recaps.__file__).parent)
    try:
        found = now.of(tuple(sorted(digests)))
    except ValueError:  # a module that is no more
        return [name for name in digests if now.code.file(name) is None] or [*digests]
    now.write()
    return [name for name in digests if found.get(name) != digests[name]]


class Kept:
    """The digests of one package from earlier processes, if no file of the package has changed since."""

    def __init__(self, package: Path) -> None:
        self.code = Code(package)
        self.file = package / "__pycache__" / "digests.json"
        state = hashlib.sha256()
        for path in sorted(path for path in package.rglob("*") if path.suffix in (".py", *TEMPLATES)):
            state.update(f"{path.relative_to(package)} {hashlib.sha256(self.code.read(path)).hexdigest()}\n".encode())
        self.state = state.hexdigest()
        self.found: dict[str, dict[str, str]] = {}
        self.is_new = False
        with suppress(OSError, UserError, ValueError, AttributeError):
            self.found = dict(read_json(self.file).get(self.state, {}))

    def of(self, roots: tuple[str, ...]) -> dict[str, str]:
        if any(_top(root) != self.code.package.name for root in roots):
            return self.code.modules(roots)  # `state` does not know these files
        name = " ".join(roots)
        if name not in self.found:
            self.found[name] = self.code.modules(roots)
            self.is_new = True
        return self.found[name]

    def write(self) -> None:
        """Write new digests if the folder can be written; they are only there to save time."""
        if self.is_new:
            with suppress(OSError, UserError, TryAgain):
                write_json(self.file, {self.state: self.found})


@functools.cache
def _kept(package: Path) -> Kept:
    kept = Kept(package)
    atexit.register(kept.write)
    return kept


class Code:
    """The modules of one package. Each file is read once: one that is edited later still counts as it was."""

    def __init__(self, package: Path) -> None:
        self.package = package
        self.others: set[str] = set()
        self.read = functools.cache(Path.read_bytes)
        self.file = functools.cache(self._file)
        self.digest = functools.cache(self._digest)
        self.imports = functools.cache(lambda name: [*self._each_import(name)])
        self._tree = functools.cache(self._parse)
        self._offered = functools.cache(self._offer)

    def modules(self, roots: Sequence[str]) -> dict[str, str]:
        """Return the digests of the modules in `closure`, by name."""
        return {name: self.digest(name)[:16] for name in sorted(self.closure(roots))}

    def closure(self, roots: Sequence[str]) -> set[str]:
        """Return the roots, all modules that they import, directly or not, and the packages on the way."""
        self.others |= {_top(root) for root in roots}
        found: set[str] = set()
        waiting = [name for name in roots if ":" in name or not _keeps_house(name)]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += [each for each in self.imports(name) if not _keeps_house(each)]
        # Without the first package: what it offers to users affects no result.
        paths = [name.split(".") for name in found]
        parents = {".".join(path[:end]) for path in paths for end in range(2, len(path))}
        return found | {parent for parent in parents if not _keeps_house(parent)}

    def _digest(self, name: str) -> str:
        """Hash the code of a module, and the style sheets and templates in its folder that it names."""
        _add_words(self._tree(name), words := list[str]())
        state = hashlib.sha256(" ".join(words).encode())
        beside = sorted(file for file in self._path(name).parent.iterdir() if file.suffix in TEMPLATES)
        text = self.read(self._path(name)).decode()
        while named := [file for file in beside if file.name in text]:
            for file in named:
                state.update(file.name.encode() + self.read(file))
                text += self.read(file).decode()  # a template may include a style sheet
                beside.remove(file)
        return state.hexdigest()

    def _file(self, name: str) -> Path | None:
        """Return the file of a module, or None if there is no such module."""
        first, *rest = name.partition(":")[0].split(".")
        top: Path | None = self.package / "__init__.py"
        if first != self.package.name:
            spec = importlib.util.find_spec(first) if first in self.others else None
            top = Path(spec.origin) if spec and spec.origin else None
        if top is None:
            return None
        path = (top.parent if top.name == "__init__.py" else top.with_suffix("")).joinpath(*rest)
        return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)

    def _each_import(self, name: str) -> Iterator[str]:
        """Yield the modules of the package that a module imports.

        With a module come those that define what it offers. A name leads to the module that defines it.
        """
        for node in _walk(self._tree(name), type_checking=False):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            source = self._source(name, node) if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                module = f"{source}.{alias.name}" if source else alias.name
                if self.file(module) is not None:
                    yield module
                    yield from self._offered(module).values()
                elif self.file(source) is not None:
                    yield self._offered(source).get(alias.name, source)

    def _offer(self, name: str) -> dict[str, str]:
        """Return the names that the `__init__` of a package imports, also lazily, with the modules that define them."""
        file = self.file(name)
        if file is None or file.name != "__init__.py":
            return {}
        nodes = [node for node in _walk(self._tree(name), type_checking=True) if isinstance(node, ast.ImportFrom)]
        offered = {
            alias.asname or alias.name: self._source(name, node, alias.name) for node in nodes for alias in node.names
        }
        return {key: module for key, module in offered.items() if self.file(module) is not None}

    def _source(self, name: str, node: ast.ImportFrom, imported: str | None = None) -> str:
        """Return the absolute name of the module of an import; the imported name itself if it is a module."""
        module = node.module or ""
        if node.level:
            file = self.file(name)
            inside = name.split(".") if file is not None and file.name == "__init__.py" else name.split(".")[:-1]
            module = ".".join([*inside[: len(inside) - node.level + 1], *filter(None, [module])])
        if imported is not None and self.file(f"{module}.{imported}") is not None:
            return f"{module}.{imported}"
        return module

    def _parse(self, name: str) -> ast.Module:
        file = self._path(name)
        tree = ast.parse(self.read(file), str(file))
        _, _, function = name.partition(":")
        if not function:
            return tree
        if not any(isinstance(node, ast.FunctionDef) and node.name == function for node in tree.body):
            raise ValueError(f"{name}: {self.package.name} has no such function")
        return _only(tree, function)

    def _path(self, name: str) -> Path:
        if (file := self.file(name)) is None:
            raise ValueError(f"{name}: {self.package.name} has no such module")
        return file


def _only(tree: ast.Module, function: str) -> ast.Module:
    """Return the part of a module that one of its functions depends on."""
    names, needed = {function}, list[ast.stmt]()
    while more := [node for node in tree.body if node not in needed and names & _bound(node)]:
        needed += more
        names |= {each.id for node in more for each in ast.walk(node) if isinstance(each, ast.Name)}
    return ast.Module(body=[node for node in tree.body if node in needed], type_ignores=[])


def _bound(node: ast.stmt) -> set[str]:
    """Return the names that a statement of a module defines."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}


def _top(name: str) -> str:
    """Return the package of a module or function."""
    return name.partition(":")[0].partition(".")[0]


def _keeps_house(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in HOUSEKEEPING)


def _walk(node: ast.AST, *, type_checking: bool) -> Iterator[ast.AST]:
    """Yield all statements, with or without those under `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            continue
        yield child
        if isinstance(child, ast.If) and not type_checking and "TYPE_CHECKING" in ast.dump(child.test):
            child = ast.Module(body=child.orelse, type_ignores=[])
        yield from _walk(child, type_checking=type_checking)


def _add_words(node: ast.AST, words: list[str], *, raised: bool = False) -> None:
    """Add a syntax tree as words: no positions, docstrings, messages, nor empty fields of newer Pythons."""
    raised = raised or isinstance(node, ast.Raise) or _called(node).endswith("Error")
    if raised and isinstance(node, ast.Constant) and isinstance(node.value, str):
        return
    words.append(type(node).__name__)
    for key in node._fields:
        if key == "returns" or (key == "annotation" and isinstance(node, ast.arg)):
            continue
        value = getattr(node, key, None)
        items = value if isinstance(value, list) else (value,)
        if items.count(None) == len(items):
            continue
        words.append(f"{key}(")
        for item in items:
            if not isinstance(item, ast.AST):
                words.append(repr(item))
            elif not _says_only(item):
                _add_words(item, words, raised=raised)
        words.append(")")


def _says_only(node: ast.AST) -> bool:
    """Return whether a statement only prints or logs, or is a docstring of a module, function, class or field."""
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return text or (isinstance(node, ast.Expr) and _called(node.value) in MESSAGES)


def _called(node: ast.AST) -> str:
    """Return the name of the function that an expression calls, e.g. `log.info`; empty if it calls none."""
    return (
        ast.unparse(node.func) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute) else ""
    )
