"""Which edits change a fingerprint, on a small package and on this one."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import recaps
from recaps.workflow import stages
from recaps.workflow.fingerprint import Code, Kept

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
            if x is None:
                raise errors.Mistake(f'no {x}')
            return pkg.maths.square(x)  # a comment
    """,
    "maths.py": "def square(x):\n    return x * x\n",
    "late.py": "VALUE = 1\nSTYLE = 'style.mplstyle'\n",
    "figures.py": "import pkg.train\n\ndef figure():\n    return 'red'\n",
    "style.mplstyle": "lines.linewidth: 1\n",
    "report.css": "p { color: red }\n",
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
        ("report.css", "red", "blue"),  # no module names it
        ("train.py", "# a comment", "# another"),
        ("train.py", "'''Train.'''", "'''Train, and say more\n    on several lines.'''"),
        ("train.py", "'''How to train.'''", ""),
        ("train.py", "no {x}", "there is no {x}"),
        ("train.py", "def train(x):", "\n\n\ndef train(\n    x\n):"),
        ("maths.py", "x * x", "(x * x)"),
        ("figures.py", "red", "blue"),
        ("data/download.py", "...", "return 1"),
        ("data/sources.py", "'a'", "'b'"),
        ("__init__.py", '"""', '\nSWITCH = 1\n"""'),  # what the package offers to users
    ],
)
def test_edit_that_does_not_matter(package: Path, file: str, old: str, new: str) -> None:
    before, after = edited(package, file, old, new)
    assert before == after


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("train.py", "square(x)", "square(2 * x)"),
        ("train.py", "errors.Mistake(", "KeyError("),
        ("maths.py", "x * x", "x + x"),
        ("late.py", "1", "2"),
        ("shared/errors.py", "Mistake", "Blunder"),
        ("data/arrays.py", "...", "return 1"),
        ("data/__init__.py", "import URL", "import URL\nSWITCH = 1"),
        ("style.mplstyle", "1", "2"),
    ],
)
def test_edit_that_matters(package: Path, file: str, old: str, new: str) -> None:
    before, after = edited(package, file, old, new)
    assert before != after


def test_closure(package: Path) -> None:
    found = Code(package).closure(["pkg.train"])
    names = ["train", "maths", "late", "shared", "shared.errors", "data", "data.arrays"]
    assert found == {f"pkg.{name}" for name in names}


def test_package_imported_whole_leads_to_all_that_it_offers(package: Path) -> None:
    (package / "all.py").write_text("import pkg.data\n")
    assert {"pkg.data.sources", "pkg.data.arrays", "pkg.data.download"} <= Code(package).closure(["pkg.all"])


STAGES = """
from pathlib import Path
from pkg.shared import errors

UNIT = 2

def first(job):
    from pkg.maths import square
    return helper(square(job))

def second(job):
    from pkg.late import VALUE
    return errors.Mistake(VALUE)

def helper(x):
    from pkg.data import load
    return load(Path(x)) * UNIT
"""


def test_root_may_be_a_function(package: Path) -> None:
    """With what it uses of its module, and nothing else."""
    (package / "stages.py").write_text(STAGES)
    found = Code(package).closure(["pkg.stages:first"])
    assert found == {"pkg.data", "pkg.data.arrays", "pkg.maths", "pkg.stages:first"}
    assert Code(package).closure(["pkg.stages:second"]) == {
        "pkg.late",
        "pkg.shared",
        "pkg.shared.errors",
        "pkg.stages:second",
    }
    before = [fingerprint(package, f"pkg.stages:{name}") for name in ("first", "second")]
    for old, new, changed in (
        ("square(job)", "square(2 * job)", [True, False]),
        ("UNIT = 2", "UNIT = 3", [True, False]),
        ("load(Path(x))", "load(x)", [True, False]),
        ("Mistake(VALUE)", "Mistake()", [False, True]),
    ):
        (package / "stages.py").write_text(STAGES.replace(old, new))
        after = [fingerprint(package, f"pkg.stages:{name}") for name in ("first", "second")]
        assert [one != other for one, other in zip(before, after, strict=True)] == changed


def test_kept_until_a_file_changes(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Kept(package)
    expected = {root: first.of((root,)) for root in ("pkg.train", "pkg.figures")}
    first.write()

    again = Kept(package)
    with monkeypatch.context() as patch:
        patch.setattr(again.code, "fingerprint", None)  # it would compute
        assert {root: again.of((root,)) for root in expected} == expected

    (package / "style.mplstyle").write_text("lines.linewidth: 2\n")
    changed = {root: Kept(package).of((root,)) for root in expected}
    assert changed == {root: fingerprint(package, root) for root in expected}
    assert changed["pkg.train"] != expected["pkg.train"]


@pytest.mark.parametrize("content", ["", "[]", '{"broken"'])
def test_damaged_kept_fingerprints_are_made_again(package: Path, content: str) -> None:
    kept = Kept(package)
    kept.file.parent.mkdir(exist_ok=True)
    kept.file.write_text(content)
    assert Kept(package).of(("pkg.train",)) == fingerprint(package, "pkg.train")


def test_a_folder_that_cannot_be_written_keeps_nothing(package: Path) -> None:
    (package / "__pycache__").write_text("a file")
    kept = Kept(package)
    assert kept.of(("pkg.train",)) == fingerprint(package, "pkg.train")
    kept.write()


@pytest.mark.parametrize("root", ["pkg.nothing", "pkg.train:nothing", "other.train"])
def test_unknown_root(package: Path, root: str) -> None:
    with pytest.raises(ValueError, match=rf"{root}: pkg has no such"):
        fingerprint(package, root)


def test_this_package() -> None:
    """Each stage depends on the code that it runs, and on no later stage."""
    code = Code(Path(recaps.__file__).parent)

    def of(stage: str, *modules: str) -> set[str]:
        return code.closure([f"recaps.workflow.stages:{stage}", *modules]) - {f"recaps.workflow.stages:{stage}"}

    def starts(names: set[str], *prefixes: str) -> bool:
        return any(name.startswith(tuple(f"recaps.{prefix}" for prefix in prefixes)) for name in names)

    train = of("train_variant", "recaps.papers.sparse.sparsecaps", "recaps.nn.routing.dynamic")
    assert {"recaps.training.loop", "recaps.nn.routing.dynamic", "recaps.arrays"} <= train
    assert not starts(train, "evaluation", "report", "workflow", "datasets.", "models.convnet", "nn.routing.em")
    assert not starts(train, "papers.sparse.figures", "papers.sparse.tables", "papers.sparse.metrics")
    assert not starts(of("train_variant", "recaps.models.convnet"), "nn.routing.dynamic", "nn.layers", "papers.")
    assert not starts(of("prepare_dataset"), "training", "models", "nn", "papers.", "report", "datasets.download")
    assert not starts(of("evaluate_heads"), "papers", "report", "nn", "config.variant", "config.families")
    assert not starts(of("collect_metrics", "recaps.papers.sparse.metrics"), "report.draw", "report.html")
    figure = of("draw_figures", "recaps.papers.sparse.figures")
    assert {"recaps.report.draw", "recaps.papers.sparse.figures"} <= figure
    assert not starts(of("score_claims"), "papers.", "training.")


def test_every_rule_has_a_stage_and_its_fingerprint(root: Path) -> None:
    text = "".join(file.read_text() for file in (root / "rules").glob("*.smk"))
    rules = re.findall(r"^rule (\w+):", text, re.MULTILINE)
    assert len(rules) > 8
    more = {
        "read_model": "plan.read_model_code",
        "collect_metrics": "plan.metrics_code",
        "time_steps": "plan.timing_code",
        "train_variant": 'plan.family_code("train_variant")',
    }
    for rule in rules:
        assert callable(getattr(stages, rule))
        (body,) = re.findall(rf"^rule {rule}:\n((?:    .*\n|\n)*)", text, re.MULTILINE)
        codes = [] if rule == "fetch_file" else [more.get(rule, f'plan.code("{rule}")')]
        assert re.findall(r"^        code=(.*),$", body, re.MULTILINE) == codes
        assert len(Code(Path(recaps.__file__).parent).closure([f"recaps.workflow.stages:{rule}"])) > 1


def test_figure_code_leaves_training_alone(tmp_path: Path) -> None:
    package = tmp_path / "recaps"
    shutil.copytree(Path(recaps.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    train, figure = ("recaps.training.run", "recaps.papers.sparse.sparsecaps"), ("recaps.papers.sparse.figures",)
    before = fingerprint(package, *train), fingerprint(package, *figure)
    with open(package / "papers" / "sparse" / "figures.py", "a") as file:
        file.write("\nCOLOUR = 'blue'\n")
    after = fingerprint(package, *train), fingerprint(package, *figure)
    assert after[0] == before[0]
    assert after[1] != before[1]
