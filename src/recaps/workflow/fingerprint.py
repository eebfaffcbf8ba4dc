"""A fingerprint of code: of what given modules say and of every module of this package that they import.

Snakemake sees that a rule's script changed, not that the library below it did. Each rule therefore carries, as a
parameter, the fingerprint of its script: editing EM routing retrains the EM runs, editing a figure retrains nothing,
and comments, docstrings and layout change no fingerprint.

What is followed: import statements anywhere in a module, also inside functions, but not those for type checking only.
`from package import name` leads to the module that `name` comes from; a package on the way to a module counts with its
own text only, so that what it re-exports for others does not matter. Style sheets and templates count with the
modules they lie beside. Modules that are imported by a computed name must be given as roots.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import recaps

#: Files that are no Python and belong to the code that they lie beside.
TEMPLATES = (".css", ".j2", ".mplstyle")

#: Starts and watches jobs; what they compute does not depend on it.
IGNORED = ("recaps.workflow",)


def fingerprint(roots: Sequence[str], package: Path | None = None) -> str:
    """Return 16 hexadecimal digits for the code below `roots`.

    Args:
        roots: names of modules (`recaps.training.run`), or paths of Python files outside the package.
        package: the folder of the package; this one by default.

    Raises:
        ValueError: a root is neither a module of the package nor a file.
    """
    return _code(package or Path(recaps.__file__).parent).fingerprint(tuple(roots))


@functools.cache
def _code(package: Path) -> Code:
    return Code(package)


class Code:
    """The modules of one package; each is read when asked for, and only once."""

    def __init__(self, package: Path) -> None:
        self.package = package
        self.file = functools.cache(self._file)
        self.digest = functools.cache(self._digest)
        self.imports = functools.cache(self._imports)
        self.fingerprint = functools.cache(self._fingerprint)
        self._tree = functools.cache(self._parse)
        self._offered = functools.cache(self._offer)

    def _fingerprint(self, roots: tuple[str, ...]) -> str:
        state = hashlib.sha256()
        for name in sorted(self.closure(roots)):
            state.update(f"{Path(name).name} {self.digest(name)}\n".encode())
        return state.hexdigest()[:16]

    def closure(self, roots: Sequence[str]) -> set[str]:
        """The roots, the modules they import, those that these import, and so on; with the packages on the way."""
        for root in roots:
            self._path(root)
        found: set[str] = set()
        waiting = list(roots)
        while waiting:
            name = waiting.pop()
            if name not in found and not name.startswith(IGNORED):
                found.add(name)
                waiting += self.imports(name)
        return found | {parent for name in found for parent in _parents(name)}

    def files(self, name: str) -> list[Path]:
        """The file of a module, and the style sheets and templates beside it."""
        file = self._path(name)
        beside = sorted(file.parent.iterdir()) if _is_module(name) else []
        return [file, *(other for other in beside if other.suffix in TEMPLATES)]

    def _digest(self, name: str) -> str:
        """Hash of what a module says, and of the style sheets and templates beside it."""
        state = hashlib.sha256(" ".join(_canonical(self._tree(name))).encode())
        for other in self.files(name)[1:]:
            state.update(other.name.encode() + other.read_bytes())
        return state.hexdigest()

    def _file(self, name: str) -> Path | None:
        """The file of a module, or None where there is no such module."""
        if not _is_module(name):
            return Path(name) if Path(name).is_file() else None
        first, *rest = name.split(".")
        path = self.package.joinpath(*rest)
        candidates = (path / "__init__.py", path.with_suffix(".py")) if rest else (path / "__init__.py",)
        return next((file for file in candidates if first == self.package.name and file.is_file()), None)

    def _imports(self, name: str) -> list[str]:
        """The modules of the package that a module imports."""
        return list(self._each_import(name))

    def _each_import(self, name: str) -> Iterator[str]:
        for node in _walk(self._tree(name), type_checking=False):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield from self._whole(alias.name)
            elif isinstance(node, ast.ImportFrom):
                source = self._source(name, node)
                for alias in node.names:
                    yield from self._named(source, alias.name)

    def _whole(self, name: str) -> Iterator[str]:
        """`import name`: the module, and all that it offers by name."""
        if self.file(name) is not None:
            yield name
            yield from self._offered(name).values()

    def _named(self, module: str, name: str) -> Iterator[str]:
        """`from module import name`: the submodule, or the module that the name comes from, else the module itself."""
        if self.file(f"{module}.{name}") is not None:
            yield from self._whole(f"{module}.{name}")
        elif self.file(module) is not None:
            yield self._offered(module).get(name, module)

    def _offer(self, name: str) -> dict[str, str]:
        """For a package: the names that its `__init__` imports for others, also lazily, and the modules they are in."""
        file = self.file(name)
        if file is None or file.name != "__init__.py":
            return {}
        nodes = [node for node in _walk(self._tree(name), type_checking=True) if isinstance(node, ast.ImportFrom)]
        offered = {
            alias.asname or alias.name: self._source(name, node, alias.name) for node in nodes for alias in node.names
        }
        return {key: module for key, module in offered.items() if self.file(module) is not None}

    def _source(self, name: str, node: ast.ImportFrom, imported: str | None = None) -> str:
        """The absolute name of the module that an import names; the imported name itself where it is a module."""
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
        return ast.parse(file.read_text(encoding="utf-8"), str(file))

    def _path(self, name: str) -> Path:
        file = self.file(name)
        if file is None:
            raise ValueError(f"{name}: neither a module of {self.package.name} nor a Python file")
        return file


def _is_module(name: str) -> bool:
    return not name.endswith(".py")


def _parents(name: str) -> list[str]:
    parts = name.split(".") if _is_module(name) else []
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def _walk(node: ast.AST, *, type_checking: bool) -> Iterator[ast.AST]:
    """All statements, with or without those below `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            continue
        yield child
        if isinstance(child, ast.If) and not type_checking and "TYPE_CHECKING" in ast.dump(child.test):
            child = ast.Module(body=child.orelse, type_ignores=[])
        yield from _walk(child, type_checking=type_checking)


def _canonical(node: ast.AST) -> list[str]:
    """A syntax tree as words, without positions, docstrings and what only newer Pythons have a field for."""
    words: list[str] = []
    _add_words(node, words)
    return words


def _add_words(node: ast.AST, words: list[str]) -> None:
    words.append(type(node).__name__)
    for key in node._fields:
        value = getattr(node, key, None)
        items = value if isinstance(value, list) else (value,)
        if items.count(None) == len(items):
            continue
        words.append(f"{key}(")
        for item in items:
            if not isinstance(item, ast.AST):
                words.append(repr(item))
            elif not _is_docstring(item):
                _add_words(item, words)
        words.append(")")


def _is_docstring(node: ast.AST) -> bool:
    """A statement that is nothing but a string, at the head of a function or below a field: without effect."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
