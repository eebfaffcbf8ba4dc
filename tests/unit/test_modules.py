"""Which edits change the digests of modules, on a small package and on this one."""

from __future__ import annotations

import fnmatch
import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from places import CONFIG

import recaps
from recaps.config.load import load
from recaps.plan import stages
from recaps.plan.modules import HOUSEKEEPING, Code, Kept
from recaps.plan.plan import Plan

pytestmark = pytest.mark.unit

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


def modules(package: Path, *roots: str) -> dict[str, str]:
    return Code(package).modules(roots)


def edited(package: Path, file: str, old: str, new: str) -> set[str]:
    """The modules of training that an edit changes, adds or removes."""
    before = modules(package, "pkg.train")
    text = (package / file).read_text()
    assert old in text
    (package / file).write_text(text.replace(old, new))
    after = modules(package, "pkg.train")
    return {name for name, _ in before.items() ^ after.items()}


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("report.css", "red", "blue"),  # no module names it
        ("train.py", "# a comment", "# another"),
        ("train.py", "'''Train.'''", "'''Train, and say more\n    on several lines.'''"),
        ("train.py", "'''How to train.'''", ""),
        ("train.py", "no {x}", "there is no {x}"),
        ("train.py", "def train(x):", "\n\n\ndef train(\n    x\n):"),
        ("train.py", "return pkg", "print(x)\n    return pkg"),
        ("train.py", "return pkg", "log.info('%s', x)\n    return pkg"),
        ("train.py", "return pkg", "warnings.warn(f'{x}', stacklevel=2)\n    return pkg"),
        ("train.py", "train(x)", "train(x: int) -> int"),
        ("maths.py", "x * x", "(x * x)"),
        ("figures.py", "red", "blue"),
        ("data/download.py", "...", "return 1"),
        ("data/sources.py", "'a'", "'b'"),
        ("__init__.py", '"""', '\nSWITCH = 1\n"""'),  # what the package offers to users
    ],
)
def test_edit_that_does_not_matter(package: Path, file: str, old: str, new: str) -> None:
    assert edited(package, file, old, new) == set()


@pytest.mark.parametrize(
    ("file", "old", "new", "changed"),
    [
        ("train.py", "square(x)", "square(2 * x)", "train"),
        ("train.py", "errors.Mistake(", "KeyError(", "train"),
        ("train.py", "return pkg", "x = print(x)\n    return pkg", "train"),  # its value is used
        ("train.py", "return pkg", "x.info('%s', x)\n    return pkg", "train"),  # no log
        ("train.py", "train(x)", "train(x=1)", "train"),
        ("maths.py", "x * x", "x + x", "maths"),
        ("late.py", "1", "2", "late"),
        ("shared/errors.py", "Mistake", "Blunder", "shared.errors"),
        ("data/arrays.py", "...", "return 1", "data.arrays"),
        ("data/__init__.py", "import URL", "import URL\nSWITCH = 1", "data"),
        ("style.mplstyle", "1", "2", "late"),
    ],
)
def test_edit_that_matters(package: Path, file: str, old: str, new: str, changed: str) -> None:
    assert edited(package, file, old, new) == {f"pkg.{changed}"}


def test_a_module_that_is_imported_in_addition_is_new(package: Path) -> None:
    assert edited(package, "maths.py", "def", "import pkg.data.sources\n\ndef") == {"pkg.maths", "pkg.data.sources"}


def test_a_module_that_keeps_house_does_not_count(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor what it alone imports."""
    (package / "maths.py").write_text("import pkg.figures\n")
    assert "pkg.figures" in modules(package, "pkg.train")
    monkeypatch.setattr("recaps.plan.modules.HOUSEKEEPING", ("pkg.maths",))
    assert not {"pkg.maths", "pkg.figures"} & modules(package, "pkg.train").keys()


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


def test_a_module_outside_of_the_package_counts_with_its_own_imports(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a routing of the user's. Modules of other packages, such as json, do not count."""
    (tmp_path / "lab").mkdir()
    for name, text in {
        "lab/__init__.py": "",
        "lab/routing.py": "import json\nfrom lab.parts import HALF\nfrom pkg.maths import square\n",
        "lab/parts.py": "HALF = 0.5\n",
        "alone.py": "import lab\n",
    }.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    kept = [Kept(package).of((root,)) for root in ("lab.routing", "alone")]
    assert [set(each) for each in kept] == [{"lab.routing", "lab.parts", "pkg.maths"}, {"alone"}]
    (tmp_path / "lab/parts.py").write_text("HALF = 0.6\n")
    after = Kept(package).of(("lab.routing",))
    assert {name for name in after if after[name] != kept[0][name]} == {"lab.parts"}


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
    before = [modules(package, f"pkg.stages:{name}") for name in ("first", "second")]
    for old, new, changed in (
        ("square(job)", "square(2 * job)", [True, False]),
        ("UNIT = 2", "UNIT = 3", [True, False]),
        ("load(Path(x))", "load(x)", [True, False]),
        ("Mistake(VALUE)", "Mistake()", [False, True]),
    ):
        (package / "stages.py").write_text(STAGES.replace(old, new))
        after = [modules(package, f"pkg.stages:{name}") for name in ("first", "second")]
        assert [one != other for one, other in zip(before, after, strict=True)] == changed


def test_kept_until_a_file_changes(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Kept(package)
    expected = {root: first.of((root,)) for root in ("pkg.train", "pkg.figures")}
    first.write()

    again = Kept(package)
    with monkeypatch.context() as patch:
        patch.setattr(again.code, "modules", None)  # it would compute
        assert {root: again.of((root,)) for root in expected} == expected

    (package / "style.mplstyle").write_text("lines.linewidth: 2\n")
    changed = {root: Kept(package).of((root,)) for root in expected}
    assert changed == {root: modules(package, root) for root in expected}
    assert changed["pkg.train"] != expected["pkg.train"]


def test_a_start_knows_the_package_as_it_was(package: Path) -> None:
    """So that what is kept belongs to one state of the package, also if a module is edited meanwhile."""
    file = package / "train.py"
    before, text = modules(package, "pkg.train"), file.read_text()
    kept = Kept(package)
    file.write_text(f"{text}\nNEW = 1\n")
    assert kept.of(("pkg.train",)) == before
    kept.write()
    assert Kept(package).of(("pkg.train",)) == modules(package, "pkg.train") != before


@pytest.mark.parametrize("content", ["", "[]", '{"broken"'])
def test_damaged_kept_digests_are_made_again(package: Path, content: str) -> None:
    kept = Kept(package)
    kept.file.parent.mkdir(exist_ok=True)
    kept.file.write_text(content)
    assert Kept(package).of(("pkg.train",)) == modules(package, "pkg.train")


def test_a_folder_that_cannot_be_written_keeps_nothing(package: Path) -> None:
    (package / "__pycache__").write_text("a file")
    kept = Kept(package)
    assert kept.of(("pkg.train",)) == modules(package, "pkg.train")
    kept.write()


@pytest.mark.parametrize("root", ["pkg.nothing", "pkg.train:nothing", "other.train"])
def test_unknown_root(package: Path, root: str) -> None:
    with pytest.raises(ValueError, match=rf"{root}: pkg has no such"):
        modules(package, root)


# This package, copied, with all variants of the plan

PLAN = Plan(load({"scale": "smoke"}, CONFIG))
VARIANTS = {
    (paper, variant): settings
    for paper, each in PLAN.project.every.items()
    for variant, settings in each.variants.items()
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    package = tmp_path_factory.mktemp("src") / "recaps"
    shutil.copytree(Path(recaps.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    return package


@contextmanager
def edit(package: Path, file: str, old: str, new: str) -> Iterator[None]:
    path = package / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    try:
        yield
    finally:
        path.write_text(text)


def made_by(package: Path, stage: str) -> dict[tuple[str, ...], dict[str, str]]:
    """The modules of each job of a stage, by paper, and variant if it has one, with the code of a package."""
    code = Code(package)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recaps.plan.identities.modules", code.modules)
        return {
            tuple(str(job.names[name]) for name in ("paper", "variant") if name in job.names): job.identity()["modules"]
            for job in PLAN.jobs
            if job.stage == stage
        }


@pytest.fixture(scope="module")
def before(original: Path) -> Callable[[str], dict[tuple[str, ...], dict[str, str]]]:
    return functools.cache(lambda stage: made_by(original, stage))


#: Edits that change no number: what is printed and logged, leases, options of families, figures, provenance.
HARMLESS = [
    ("nn/kernels/compiled.py", "Compiled kernels are not cached", "There is no cache"),
    (
        "nn/kernels/compiled.py",
        "        folder = Path(tempfile",
        "        print('more')\n        folder = Path(tempfile",
    ),
    ("training/step.py", "        with arithmetic", "        log.info('step')\n        with arithmetic"),
    ("training/run.py", "file=sys.stderr", "file=sys.stdout"),
    ("training/lease.py", "TOUCHED = 15", "TOUCHED = 20"),
    ("training/checkpoint.py", "os.replace(written", "os.rename(written"),
    ("training/machine.py", "return torch.cuda.get_device_name(device)", "return 'a GPU'"),
    ("papers/sparse/options.py", "Field(16, ge=2)", "Field(16, ge=3)"),
    ("papers/sparse/options.py", "    boost_every: int", "    another: int = 3\n    boost_every: int"),
    ("models/options.py", "Field(5, ge=1)", "Field(5, ge=1, le=99)"),
    ("config/training.py", "Field(128, ge=1)", "Field(128, ge=2)"),
    ("nn/routing/options.py", "Field(0.01, gt=0)", "Field(0.01, ge=0)"),
    ("nn/routing/em.py", "Each type of output capsule has two", "Each output capsule has two"),
    ("papers/sparse/figures.py", "figsize=(8.4, 3.4)", "figsize=(8.4, 4.3)"),
    ("papers/sparse/record.py", "\nfrom __future__", "\nMORE = 1\nfrom __future__"),
    ("papers/sparse/probes.py", "\nfrom __future__", "\nMORE = 1\nfrom __future__"),
    ("provenance.py", '"host_cores": os.cpu_count(),', ""),
    ("identity.py", "len(text) < 60", "len(text) < 70"),
    ("evaluation/heads.py", "\nfrom __future__", "\nMORE = 1\nfrom __future__"),
    ("plan/identities.py", '"seed": int(names.seed)', '"seed": int(names.seed), "more": 1'),
]


@pytest.mark.parametrize(("file", "old", "new"), HARMLESS)
def test_edit_that_makes_no_training_new(original: Path, before: Any, file: str, old: str, new: str) -> None:
    with edit(original, file, old, new):
        assert made_by(original, "train_variant") == before("train_variant")
    assert before("train_variant").keys() == VARIANTS.keys()


def test_a_copy_with_harmless_edits_has_the_settings_too(original: Path, root: Path) -> None:
    """In a process that runs the copy: bounds of options are part of the settings' types, not of their values."""
    script = """
import json
from pathlib import Path
from recaps.config.load import load
from recaps.plan.plan import Plan
jobs = Plan(load({"scale": "smoke"}, Path("config"))).jobs
print(json.dumps({str(job): job.identity() for job in jobs if job.stage == "train_variant"}))
"""

    def identities() -> Any:
        environment = os.environ | {"PYTHONPATH": str(original.parent)}
        command = [sys.executable, "-c", script]
        return json.loads(subprocess.run(command, cwd=root, env=environment, capture_output=True, check=True).stdout)

    expected = identities()
    assert len(expected) == len(VARIANTS)
    with ExitStack() as edits:
        for each in HARMLESS:
            if "another" not in each[2] and each[0] != "plan/identities.py":  # these two change settings
                edits.enter_context(edit(original, *each))
        assert identities() == expected


def of_family(*names: str) -> Callable[[Any], bool]:
    return lambda settings: settings.model.family in names


def routed_by(name: str) -> Callable[[Any], bool]:
    return lambda settings: getattr(getattr(settings.model, "routing", None), "name", "") == name


CAPSULES = ("supcaps", "discriminative", "sparsecaps")


@pytest.mark.parametrize(
    ("file", "old", "new", "uses"),
    [
        ("nn/losses/margin.py", "0.9", "0.8", of_family("supcaps", "discriminative", "convnet")),
        ("nn/losses/spread.py", "square()", "abs()", of_family("matrixcaps")),
        (
            "nn/losses/squares.py",
            "square()",
            "abs()",
            lambda settings: settings.model.family not in ("convnet", "matrixcaps", "pixels"),
        ),
        ("papers/experts/rbm.py", "\nfrom __future__", "\nMORE = 1\nfrom __future__", of_family("rbm")),
        ("nn/routing/em.py", "+ VARIANCE", "+ 2 * VARIANCE", routed_by("em")),
        ("nn/kernels/em.py", "\nfrom __future__", "\nMORE = 1\nfrom __future__", routed_by("em")),
        ("nn/routing/dynamic.py", "\nfrom __future__", "\nMORE = 1\nfrom __future__", routed_by("dynamic")),
        ("nn/routing/attention.py", "\nfrom __future__", "\nMORE = 1\nfrom __future__", routed_by("attention")),
        ("models/network.py", "STRIDE = 2", "STRIDE = 3", of_family(*CAPSULES)),
        ("training/batches.py", "div_(255)", "div_(256)", lambda settings: True),
        ("training/testing.py", "100 * int(wrong)", "1.0 * int(wrong)", lambda settings: True),
        ("training/device.py", "cudnn.allow_tf32 = False", "cudnn.allow_tf32 = True", lambda settings: True),
        ("training/device.py", '"vendor_id"', '"vendor"', lambda settings: True),
        ("arrays.py", "\nfrom __future__", "\nMORE = 1\nfrom __future__", lambda settings: True),
    ],
)
def test_edit_that_makes_the_trainings_new_that_use_it(
    original: Path, before: Any, file: str, old: str, new: str, uses: Callable[[Any], bool]
) -> None:
    module = "recaps." + file.removesuffix(".py").replace("/", ".")
    with edit(original, file, old, new):
        after = made_by(original, "train_variant")
    changed = {
        name: {each for each, _ in modules.items() ^ before("train_variant")[name].items()}
        for name, modules in after.items()
    }
    expected = {name for name, settings in VARIANTS.items() if uses(settings)}
    assert expected
    assert {name for name, modules in changed.items() if modules} == expected
    assert all(modules == {module} for modules in changed.values() if modules)


@pytest.mark.parametrize(
    ("file", "stage", "papers"),
    [
        ("papers/sparse/figures.py", "draw_figures", {"sparse"}),
        ("papers/sparse/tables.py", "draw_tables", {"sparse"}),
        ("papers/sparse/metrics.py", "collect_metrics", {"sparse"}),
        ("papers/sparse/record.py", "record_run", {"sparse", "sparse.svm"}),
        ("papers/sparse/probes.py", "read_model", {"sparse"}),
    ],
)
def test_edit_that_makes_what_is_computed_from_runs_new(
    original: Path, before: Any, file: str, stage: str, papers: set[str]
) -> None:
    with edit(original, file, "\nfrom __future__", "\nMORE = 1\nfrom __future__"):
        after = made_by(original, stage)
    new = {name for name, modules in after.items() if modules != before(stage)[name]}
    assert {paper for paper, *_ in new} == papers
    if stage == "read_model":
        assert new == {name for name in VARIANTS if name[0] == "sparse" and VARIANTS[name].probes}


def test_this_package() -> None:
    """Each stage depends on the code that it runs, and on no later stage."""

    def of(stage: str, **names: Any) -> set[str]:
        (job,) = [job for job in PLAN.jobs if job.stage == stage and names.items() <= job.names.items()]
        return set(job.identity()["modules"])

    def starts(names: set[str], *prefixes: str) -> bool:
        return any(name.startswith(tuple(f"recaps.{prefix}" for prefix in prefixes)) for name in names)

    sparse = {"paper": "sparse", "variant": "sparsecaps"}
    train = of("train_variant", **sparse)
    assert {"recaps.training.step", "recaps.nn.routing.dynamic", "recaps.arrays"} <= train
    assert not starts(train, "evaluation", "report", "plan", "datasets", "models.convnet", "nn.routing.em")
    assert not starts(train, "papers.sparse.figures", "papers.sparse.tables", "papers.sparse.metrics", "config")
    assert not starts(of("train_variant", paper="sparse", variant="convnet"), "nn.routing", "nn.layers", "papers.")
    data = of("prepare_dataset", dataset="mnist", split="train")
    assert "recaps.datasets.preparation" in data
    assert not starts(data, "training", "models", "nn", "papers.", "report", "datasets.download")
    heads = of("evaluate_heads", **sparse)
    assert "recaps.evaluation.heads" in heads
    assert not starts(heads, "papers", "report", "nn", "config.variant", "config.families")
    metrics = of("collect_metrics", paper="sparse")
    assert "recaps.papers.sparse.metrics" in metrics
    assert not starts(metrics, "report.draw", "report.html", "training", "nn")
    figures = of("draw_figures", paper="sparse")
    assert {"recaps.report.draw", "recaps.papers.sparse.figures"} <= figures
    assert not starts(figures - {"recaps.models", "recaps.models.schedule"}, "training", "nn", "models")
    assert not starts(of("score_claims"), "papers.", "training.")


def test_every_housekeeping_module_exists() -> None:
    """A module that was renamed would count, or its pattern would hide another one."""
    package = Path(recaps.__file__).parent
    files = [file.relative_to(package.parent).with_suffix("") for file in package.rglob("*.py")]
    names = [".".join(file.parts).removesuffix(".__init__") for file in files]
    assert [pattern for pattern in HOUSEKEEPING if not fnmatch.filter(names, pattern)] == []


def test_every_rule_has_a_stage_and_its_identity(root: Path) -> None:
    text = "".join(file.read_text() for file in (root / "rules").glob("*.smk"))
    rules = re.findall(r"^rule (\w+):", text, re.MULTILINE)
    assert len(rules) > 8
    assert {*rules, "draw_tables", "draw_figures"} == {"fetch_file", *(job.stage for job in PLAN.jobs)}
    for rule in rules:
        assert callable(getattr(stages, rule))
        (body,) = re.findall(rf"^rule {rule}:\n((?:    .*\n|\n)*)", text, re.MULTILINE)
        made_again = rule != "fetch_file"  # a published digest, or none, decides
        named = re.findall(r"^        (?:identity=|\*\*)plan\.(?:identity|params)\(\"(\w+)\"\),$", body, re.MULTILINE)
        assert named == [rule] * made_again
        if "plan.params" in body:
            assert "identity" in PLAN.params(rule)
        assert re.findall(r"^        again=(.*),$", body, re.MULTILINE) == [f'again("{rule}")'] * made_again
    (body,) = re.findall(r'^ {20}f"draw_{kind}_of_.*\n((?: {16}.*\n|\n)*)', text, re.MULTILINE)
    assert 'again=again(f"draw_{kind}", paper=paper),' in body
    assert "**plan.drawing(paper, kind)," in body
