"""Write the files of a new paper or routing: `python -m recaps new paper NAME`, `python -m recaps new routing NAME`."""

from __future__ import annotations

import keyword
import re
import subprocess
import sys
from pathlib import Path

from recaps import papers
from recaps.config.families import families
from recaps.config.reading import read_yaml
from recaps.errors import UserError
from recaps.io import short, write_text
from recaps.nn import routing
from recaps.plan.checks import TARGETS

TEMPLATES = Path(__file__).parent / "templates"
#: What a routing routes, with the paper and the model family of the printed example.
KINDS = {"votes": ("discriminative", "supcaps"), "poses": ("consensus", "matrixcaps")}

PAPER = """\
{folder}: a working paper with two variants. Run it on stand-in data:
  snakemake --profile profiles/smoke --config scale=smoke 'papers=[{name}]'"""

ROUTING = """\
{file}: a working routing. To use it, add a variant to a paper, for example to {paper}/paper.yaml:
  mnist-{name}:
    <<: *mnist
    title: {title}
    model: {{family: {family}, routing: {{name: {path}, sharpness: 1.0}}}}"""


def make(what: str, name: str, kind: str) -> str:
    """Write the files and return what to do next.

    Args:
        what: `paper` or `routing`.
        name: of the paper or routing.
        kind: `votes` or `poses`, for a routing.

    Raises:
        UserError: the name is not valid, or taken, or this is no checkout.
    """
    root = papers.FOLDER.parents[2]
    if not (root / "config").is_dir():
        raise UserError(f"new {what}: {papers.FOLDER.parent} is no checkout; clone the project, and run this there")
    if not re.fullmatch("[a-z][a-z0-9]*", name) or keyword.iskeyword(name):
        raise UserError(f"new {what}: '{name}' is not valid; use lower-case letters and digits")
    folder = papers.FOLDER if what == "paper" else Path(routing.__file__).parent
    taken = {*TARGETS, *families()} if what == "paper" else set()
    if name in taken or (folder / name).exists() or (folder / f"{name}.py").exists():
        raise UserError(f"new {what}: the name '{name}' is taken; choose another")
    if (config := root / "config" / "config.yaml").exists():
        read_yaml(config)  # so does the manual, after the files are written
    if what == "paper":
        for file in sorted((TEMPLATES / "paper").glob("*.*")):
            _copy(file, folder / name / file.name, name)
        told = PAPER.format(folder=short(folder / name), name=name)
        fix = "-m recaps.config.manual --fix"  # in a process that sees the new files
        subprocess.run([sys.executable, *fix.split()], cwd=root, check=True, stdout=subprocess.DEVNULL)
        about = "The manual and the schemas of the configuration are up to date. After a change of options:"
        return f"{told}\n{about} python {fix}"
    _copy(TEMPLATES / "routing" / f"{kind}.py", file := folder / f"{name}.py", name)
    paper, family = KINDS[kind]
    path = f"{routing.__name__}.{name}:{name.capitalize()}Routing"
    return ROUTING.format(file=short(file), name=name, paper=paper, title=name.capitalize(), family=family, path=path)


def _copy(source: Path, target: Path, name: str) -> None:
    text = source.read_text(encoding="utf-8").replace("recaps.plan.templates.paper", f"recaps.papers.{name}")
    write_text(target, text.replace("example", name).replace("Example", name.capitalize()))
