"""Checks of a configuration that need more than one of its files."""

from __future__ import annotations

import ast
import fnmatch
import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from recaps.config.load import Project, variants_at_any_scale
from recaps.datasets import catalogue, own
from recaps.errors import UserError, nearest
from recaps.io import short
from recaps.papers import FOLDER, of
from recaps.report.claims import Claim, Printed, check_variants, printed, read

#: Targets of the workflow; no paper may have their names.
TARGETS = ("all", "data", "train", "latents", "heads", "tables", "figures", "papers", "studies", "scorecard", "report")

#: A file of claims is read once.
_read = functools.cache(read)


def check(project: Project) -> None:
    """Raise a UserError at the first mistake."""
    for each in (_folders, _papers, _claims, _own_data, _sets, _models):
        each(project)


def paper_file(paper: str, file: str) -> Path:
    """Return a file of the folder of a paper, or of a study's paper."""
    return short(FOLDER / of(paper) / file)


def claims_of(paper: str) -> list[Claim]:
    """Return the claims of a paper."""
    return _read(paper_file(paper, "claims.yaml"))


def printed_by(paper: str) -> dict[str, Printed]:
    """Return the values that a paper prints, by claim; none of a study."""
    return printed(claims_of(paper)) if of(paper) == paper else {}


def _folders(project: Project) -> None:
    """Refuse a folder that cannot be made because there is a file of this name."""
    for key, folder in (("results", project.config.results), ("data", project.config.data)):
        for path in (Path(folder), *Path(folder).parents):
            if path.exists() and not path.is_dir():
                raise UserError(f"config: {key}: {path} is a file; name a folder")


def _papers(project: Project) -> None:
    """Refuse a paper with the name of a target, or without a file or function that its configuration needs."""
    for name, paper in project.papers.items():
        if name in TARGETS:
            raise UserError(f"{short(FOLDER / name)}: '{name}' is the name of a target; rename the paper")
        studies = [study for key, study in project.studies.items() if of(key) == name]
        probes = {key for each in (paper, *studies) for variant in each.variants.values() for key in variant.probes}
        drawn = {("tables", "draw"): {*paper.tables}, ("figures", "draw"): {*paper.figures}}
        called = {**drawn, ("probes", "compute"): probes}
        for study in (each.study for each in studies):
            for place, what in ((study.measure, "measure"), (study.drawn_by, "draw")):
                if place:
                    module, _, function = place.partition(":")
                    called.setdefault((module, what), set()).add(function)
        functions = {(f"{module}.py", what): names for (module, what), names in called.items() if names}
        for file in ("claims.yaml", "README.md", "record.py", *(file for file, _ in functions)):
            if not (FOLDER / name / file).is_file():
                raise UserError(f"{short(FOLDER / name / file)}: no such file, and the paper needs it")
        for (file, what), names in functions.items():
            _defined(paper_file(name, file), names, what)


def _defined(file: Path, names: Iterable[str], what: str) -> None:
    """Refuse a table, figure or probe without a function. The file is only read: importing it takes seconds."""
    try:
        tree = ast.parse(file.read_bytes())
    except SyntaxError as error:
        raise UserError(f"{file}: line {error.lineno}: {error.msg}") from error
    known = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    known |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for name in sorted(names):
        function = name.replace("-", "_")
        if function not in known:
            public = [each for each in known if not each.startswith("_")]
            raise UserError(f"{file}: no function {function} to {what} '{name}'{nearest(function, public)}")


def _claims(project: Project) -> None:
    """Refuse a claim about a variant that its paper has at no scale."""
    for name, paper in project.papers.items():
        claims, lost = claims_of(name), project.left_out.get(name)
        for study in (claim.study for claim in claims if claim.study):
            if (own := project.studies.get(f"{name}.{study}")) and own.reported:
                raise UserError(f"config: studies.{study}: {name} has a study of this name; give yours another one")
        # Studies may be left out, or be there at other scales only.
        claims = [claim for claim in claims if not claim.study or claim.measured_in in project.studies]
        named = {measure.variant for claim in claims if not claim.study for measure in claim.measures}
        others = set(lost.variants) if lost else set()
        if not named <= {*paper.variants, *others}:
            others |= variants_at_any_scale(FOLDER / name / "paper.yaml")
        check_variants(claims, {name: paper, **project.studies}, others)


def _own_data(project: Project) -> None:
    """Refuse a name that own data cannot have, damaged data, and a set that they cannot replace."""
    for name, settings in project.own.items():
        taken = [each for each in catalogue.names() if each == name or each.endswith(f"-{name}")]
        if name in taken:
            raise UserError(f"config: datasets.{name}: is the name of a set; write {{mine: {{...}}, {name}: mine}}")
        if taken:
            raise UserError(f"config: datasets: '{name}' could be confused with '{taken[0]}'; give another name")
        own.sizes(Path(settings.path), settings.test_fraction)
    for name, other in project.replaced.items():
        if other in project.own and name not in catalogue.replaceable():
            known = ", ".join(catalogue.replaceable())
            raise UserError(f"config: datasets: your own data cannot replace '{name}'; they can replace {known}")
        size = project.own[other].size if other in project.own else None
        if size and size != (usual := catalogue.entry(name).size):
            raise UserError(
                f"config: datasets.{other}.size: {size}, but {name}, which it replaces, has images of {usual}x{usual};"
                f" set `size: {usual}`"
            )


def _sets(project: Project) -> None:
    """Refuse sets, splits and options that are not in the catalogue."""
    scale = f"config/scales/{project.config.scale}.yaml"
    for name, other in project.replaced.items():
        if other in project.own:
            continue
        shapes = [_at("config: datasets", _shape, each) for each in (name, other)]
        if shapes[0] != shapes[1]:
            raise UserError(
                f"config: datasets: '{other}' has {shapes[1]}, but '{name}' has {shapes[0]}; name a data set of the"
                " same shape"
            )
    for name in project.own:
        if name not in project.replaced.values():
            raise UserError(f"config: datasets.{name}: replaces no set; name the set, e.g. {{mnist: {name}}}")
    for name, options in project.scale.dataset_options.items():
        _at(f"{scale}: dataset_options", catalogue.resolve, name, options)
    known = [f"{name}/{split}" for name in catalogue.names() for split in catalogue.splits(name)]
    for paper, settings in project.every.items():
        for name in settings.limits:
            if not fnmatch.filter(known, name):
                where = paper_file(paper, "paper.yaml")
                raise UserError(f"{where}: limits: no set matches '{name}'{nearest(name, known)}")
        for name in sorted(settings.used_sets):
            replacement, split = project.resolve(name).split("/")
            like, _ = project.origin(replacement)
            _at(paper_file(paper, "paper.yaml"), catalogue.check_split, like, split)


def _models(project: Project) -> None:
    """Refuse a model with another number of classes than its data, and shifts and crops too large for its images."""
    for paper, settings in project.every.items():
        for name, variant in settings.variants.items():
            where = f"{paper_file(paper, 'paper.yaml')}: variants.{name}"
            like, mine = project.origin(project.dataset(variant.data.split("/")[0]))
            if mine is None:
                _at(where, variant.model.check_classes, catalogue.entry(like).classes)
            side = catalogue.entry(like).size + 2 * variant.training.pad
            for key, value in (("shift", variant.training.shift + 1), ("crop", variant.training.crop or 1)):
                if value > side:
                    was = getattr(variant.training, key)
                    raise UserError(f"{where}.training.{key}: {was}, but its images are {side}x{side}")


def _at(where: object, check: Callable[..., Any], *arguments: Any) -> Any:
    """Call `check`, and add to its UserError where the mistake is."""
    try:
        return check(*arguments)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def _shape(name: str) -> str:
    about = catalogue.describe(name)
    return f"images of {about['channels']}x{about['height']}x{about['width']} in {about['classes']} classes"
