"""Which edits change a fingerprint, on a small package and on this one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import recaps
from recaps.workflow.fingerprint import Code

FILES = {
    "__init__.py": '"""A package."""\n',
    "train.py": """
        '''How to train.'''
        from __future__ import annotations
        from typing import TYPE_CHECKING
        import pkg.maths
        from pkg.data import load
        from .shared import errors
        if TYPE_CHECKING:
            from pkg.figures import figure

        def train(x):
            '''Train.'''
            from pkg import late
            return pkg.maths.square(x)  # a comment
    """,
    "maths.py": "def square(x):\n    return x * x\n",
    "late.py": "VALUE = 1\n",
    "figures.py": "import pkg.train\n\ndef figure():\n    return 'red'\n",
    "style.mplstyle": "lines.linewidth: 1\n",
    "shared/__init__.py": "",
    "shared/errors.py": "class Mistake(Exception): ...\n",
    "data/__init__.py": """
        from typing import TYPE_CHECKING
        from pkg.data.sources import URL
        if TYPE_CHECKING:
            from pkg.data.arrays import load
            from pkg.data.download import fetch
    """,
    "data/sources.py": "URL = 'a'\n",
    "data/arrays.py": "def load(): ...\n",
    "data/download.py": "def fetch(): ...\n",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "pkg"
    for name, text in FILES.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = text.splitlines()
        indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
        file.write_text("\n".join(line[indent:] for line in lines) + "\n")
    return folder


def fingerprint(package: Path, *roots: str) -> str:
    return Code(package).fingerprint(roots)


def edited(package: Path, file: str, old: str, new: str) -> tuple[str, str]:
    """The fingerprint of training before and after an edit."""
    before = fingerprint(package, "pkg.train")
    text = (package / file).read_text()
    assert old in text
    (package / file).write_text(text.replace(old, new))
    return before, fingerprint(package, "pkg.train")


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("train.py", "# a comment", "# another"),
        ("train.py", "'''Train.'''", "'''Train, and say more\n    on several lines.'''"),
        ("train.py", "'''How to train.'''", ""),
        ("train.py", "def train(x):", "\n\n\ndef train(\n    x\n):"),
        ("maths.py", "x * x", "(x * x)"),
        ("figures.py", "red", "blue"),
        ("data/download.py", "...", "return 1"),
        ("data/sources.py", "'a'", "'b'"),
    ],
)
def test_edit_that_does_not_matter(package: Path, file: str, old: str, new: str) -> None:
    before, after = edited(package, file, old, new)
    assert before == after


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("train.py", "square(x)", "square(2 * x)"),
        ("maths.py", "x * x", "x + x"),
        ("late.py", "1", "2"),
        ("shared/errors.py", "Mistake", "Blunder"),
        ("data/arrays.py", "...", "return 1"),
        ("__init__.py", '"""', '\nSWITCH = 1\n"""'),
        ("style.mplstyle", "1", "2"),
    ],
)
def test_edit_that_matters(package: Path, file: str, old: str, new: str) -> None:
    before, after = edited(package, file, old, new)
    assert before != after


def test_closure(package: Path) -> None:
    found = Code(package).closure(["pkg.train"])
    names = ["train", "maths", "late", "shared", "shared.errors", "data", "data.arrays"]
    assert found == {"pkg", *(f"pkg.{name}" for name in names)}


def test_package_imported_whole_leads_to_all_that_it_offers(package: Path) -> None:
    (package / "all.py").write_text("import pkg.data\n")
    assert {"pkg.data.sources", "pkg.data.arrays", "pkg.data.download"} <= Code(package).closure(["pkg.all"])


def test_root_may_be_a_script_and_its_folder_does_not_count(package: Path, tmp_path: Path) -> None:
    prints = set()
    for folder in ("here", "there"):
        script = tmp_path / folder / "script.py"
        script.parent.mkdir()
        script.write_text("from pkg.maths import square\nsquare(snakemake.params.x)\n")
        prints.add(fingerprint(package, str(script)))
    assert len(prints) == 1
    (package / "maths.py").write_text("def square(x): return 0\n")
    assert fingerprint(package, str(script)) not in prints


def test_unknown_root(package: Path) -> None:
    with pytest.raises(ValueError, match=r"pkg\.nothing: neither a module of pkg nor a Python file"):
        fingerprint(package, "pkg.nothing")


def test_this_package(root: Path) -> None:
    """Each stage depends on what it computes with, and on no later stage."""
    code = Code(Path(recaps.__file__).parent)

    def of(script: str, *modules: str) -> set[str]:
        return code.closure([str(root / "workflow" / "scripts" / f"{script}.py"), *modules])

    def starts(names: set[str], *prefixes: str) -> bool:
        return any(name.startswith(tuple(f"recaps.{prefix}" for prefix in prefixes)) for name in names)

    train = of("train_variant", "recaps.papers.sparse.sparsecaps")
    assert {"recaps.training.loop", "recaps.nn.routing.dynamic", "recaps.arrays"} <= train
    assert not starts(train, "evaluation", "papers", "report", "workflow", "datasets", "models.convnet")
    assert not starts(of("train_variant", "recaps.models.convnet"), "nn.routing", "models.sparsecaps")
    assert not starts(of("prepare_dataset"), "training", "models", "nn", "papers", "report", "datasets.download")
    assert not starts(of("evaluate_head"), "papers", "report", "nn")
    figure = of("draw_figure", "recaps.papers.sparse.metrics")
    assert {"recaps.report.draw", "recaps.papers.sparse.metrics"} <= figure
    assert not starts(of("score_claims"), "papers", "training")


def test_figure_code_leaves_training_alone(tmp_path: Path) -> None:
    package = tmp_path / "recaps"
    shutil.copytree(Path(recaps.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    train, figure = ("recaps.training.run", "recaps.papers.sparse.sparsecaps"), ("recaps.papers.sparse.metrics",)
    before = fingerprint(package, *train), fingerprint(package, *figure)
    with open(package / "papers" / "sparse.py", "a") as file:
        file.write("\nCOLOUR = 'blue'\n")
    after = fingerprint(package, *train), fingerprint(package, *figure)
    assert after[0] == before[0]
    assert after[1] != before[1]
