"""Load the configuration: the user's settings, the scale and the papers, merged and checked."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from recaps import papers as found
from recaps.config.base import Section
from recaps.config.reading import check, merge, read_yaml
from recaps.config.studies import Studied, held_out, studied
from recaps.config.variant import Paper, Study, Variant
from recaps.config.without import LeftOut, leave_out
from recaps.config.workflow import Config, OwnData, Scale
from recaps.datasets import catalogue
from recaps.datasets.own import number_of_classes
from recaps.errors import UserError, nearest
from recaps.io import short

#: The scales of this repository, which its papers know also if the user's folder of the configuration has others.
_SCALES = found.FOLDER.parents[2] / "config" / "scales"


class Project(Section):
    """The whole configuration: the user's settings, the scale, and the chosen papers with all changes merged in."""

    config: Config
    scale: Scale
    papers: dict[str, Paper]
    left_out: dict[str, LeftOut] = {}
    """The parts of the papers that are left out (`without`)."""
    elsewhere: dict[str, dict[str, Paper]] = {}
    """Papers at other scales whose networks are timed, by scale and name."""
    studies: dict[str, Studied] = {}
    """The studies, by `<paper>.<study>`."""

    @property
    def reported(self) -> dict[str, Paper]:
        """The papers, and the studies that the report shows."""
        return {**self.papers, **{name: study for name, study in self.studies.items() if study.reported}}

    @property
    def every(self) -> dict[str, Paper]:
        """The papers, and the studies as papers."""
        return {**self.papers, **self.studies}

    def seeds_of(self, variant: Variant) -> tuple[int, ...]:
        """Return the seeds that a variant is trained with."""
        return self.config.seeds or variant.seeds or self.scale.seeds

    @property
    def seeds(self) -> tuple[int, ...]:
        """All seeds of any variant, the scale's first."""
        variants = [variant for paper in self.papers.values() for variant in paper.variants.values()]
        own = [seed for variant in variants for seed in self.seeds_of(variant)]
        return tuple(dict.fromkeys([*(self.config.seeds or self.scale.seeds), *own]))

    def timed(self, paper: str, name: str) -> dict[str, Variant]:
        """Return the variants of a timing, with the networks that are timed."""
        chosen, timing = self.papers[paper], self.papers[paper].timings[name]
        variants = {variant: chosen.variants[variant] for variant in chosen.matching(timing.variants)}
        if timing.networks is None:
            return variants
        wide = self.elsewhere[timing.networks][paper].variants
        for variant in variants:
            if variant not in wide:
                where = f"{paper}/paper.yaml: timings.{name}.networks"
                raise UserError(f"{where}: scale '{timing.networks}' has no variant '{variant}'; match other variants")
        return {name: each.model_copy(update={"model": wide[name].model}) for name, each in variants.items()}

    @property
    def own(self) -> dict[str, OwnData]:
        """The user's own data sets, by name."""
        return {name: each for name, each in self.config.datasets.items() if isinstance(each, OwnData)}

    @property
    def replaced(self) -> dict[str, str]:
        """The data sets that are replaced by others or by the user's own."""
        changes = {**self.scale.datasets, **self.config.datasets}
        return {name: other for name, other in changes.items() if isinstance(other, str)}

    def dataset(self, name: str) -> str:
        """Return the data set that replaces `name` at this scale, e.g. `affnist-generated` for `affnist`.

        If the user's own set `mine` replaces `mnist`, then `mnist-mine` replaces it here, and `mnist-40-mine` replaces
        `mnist-40`, which is derived from it. In the same way, `smallnorb-zip-48` replaces `smallnorb-48`.
        """
        replaced = self.replaced
        found = replaced.get(name, name)
        if found in self.own:
            return f"{name}-{found}"
        generated = catalogue.GENERATED.get(found, found)
        base = catalogue.entry(generated).base if generated in catalogue.names() else None
        other = replaced.get(base, "") if base else ""
        return f"{generated}-{other}" if other in self.own else catalogue.on_base(found, other)

    def origin(self, name: str) -> tuple[str, str | None]:
        """Return the set of the catalogue that a set of this scale is made like, and the user's data in it, if any.

        This is (`mnist-40`, `mine`) for `mnist-40-mine`, and (`mnist`, None) for `mnist`.
        """
        for own in self.own:
            like = name.removesuffix(f"-{own}")
            if like != name and like in catalogue.names():
                return like, own
        return name, None

    def own_data(self, paper: str) -> list[str]:
        """Return the user's own data that a paper uses, e.g. `mine in place of mnist`."""
        origins = {self.origin(self.dataset(name.split("/")[0])) for name in self.every[paper].used_sets}
        return sorted({f"{own} in place of {catalogue.entry(like).base or like}" for like, own in origins if own})

    def stand_in(self, set_name: str) -> bool:
        """Return whether `name/split` is stand-in data at this scale."""
        return self.scale.stand_in and self.origin(self.dataset(set_name.split("/")[0]))[1] is None

    def resolve(self, set_name: str) -> str:
        """Like `dataset`, for `name/split`."""
        name, split = set_name.split("/")
        return f"{self.dataset(name)}/{split}"

    def resolver(self, paper: str) -> Callable[[str], str]:
        """Return `resolve` for a paper or a study, which may be judged on held-out images instead of test images."""
        if paper in self.studies and self.studies[paper].study.judged == "held-out":
            return lambda name: self.resolve(held_out(name))
        return self.resolve

    def sources(self, set_name: str) -> set[str]:
        """Return the data sets that `name/split` depends on: its replacement at this scale, and the base of that."""
        name, own = self.origin(self.dataset(set_name.split("/")[0]))
        base = catalogue.entry(name).base if name in catalogue.names() else None
        return {own} if own else {name, base} if base else {name}


def load(values: Mapping[str, Any], folder: Path, papers: Path = found.FOLDER) -> Project:
    """Return the checked configuration, without the parts that are left out (`without`).

    Args:
        values: the user's settings, as in `config.yaml`.
        folder: the folder `config/`, which holds `scales/`.
        papers: the folder of the papers; each is a folder with a `paper.yaml`.

    Raises:
        UserError: a mistake, in one line with the file, the key and the nearest valid key.
    """
    config = check(Config, values, "config")
    scales = _names(folder / "scales")
    if not scales:
        raise UserError(f"{folder / 'scales'}: no files of scales; run the command in the project's folder")
    if config.scale not in scales:
        raise UserError(f"config: scale: there is no scale '{config.scale}'{nearest(config.scale, scales)}")
    known = found.names(papers)
    for key, names in (("papers", config.papers or ()), ("overrides", config.overrides)):
        for name in names:
            if name not in known:
                raise UserError(f"config: {key}: there is no paper '{name}'{nearest(name, known)}")
    scale_file = folder / "scales" / f"{config.scale}.yaml"
    scale = check(Scale, read_yaml(scale_file), str(short(scale_file)))
    every = {*scales, *_names(_SCALES)}

    def at(scale: str, name: str) -> Paper:
        return _paper(papers / name / "paper.yaml", config, scale, every)

    chosen = {name: at(config.scale, name) for name in config.papers or known}
    elsewhere: dict[str, dict[str, Paper]] = {}
    for name, paper in chosen.items():
        for variant, settings in paper.variants.items():
            if settings.seeds and scale.seeds[0] not in settings.seeds:
                where = f"{short(papers / name / 'paper.yaml')}: variants.{variant}.seeds"
                raise UserError(f"{where}: the scale's first seed, {scale.seeds[0]}, is missing")
        for timing, networks in ((key, each.networks) for key, each in paper.timings.items() if each.networks):
            if networks not in scales:
                where = f"{short(papers / name / 'paper.yaml')}: timings.{timing}.networks"
                raise UserError(f"{where}: there is no scale '{networks}'{nearest(networks, scales)}")
            elsewhere.setdefault(networks, {})[name] = at(networks, name)
    project = _with_own_classes(Project(config=config, scale=scale, papers=chosen, elsewhere=elsewhere))
    project = _without(project) if config.without else project
    studies = _studies(project, known)
    if config.only:  # and nothing else, but the user's own studies
        project = _only(project)
        studies = {name: study for name, study in studies.items() if study.reported}
    made = {name: paper.model_copy(update={"studies": {}}) for name, paper in project.papers.items()}
    return project.model_copy(update={"papers": made, "studies": studies})


def _paper(file: Path, config: Config, scale: str, scales: Collection[str]) -> Paper:
    """Read a paper's file, merge in a scale's changes, the user's overrides and the defaults, and validate it.

    The file may change settings for `scales`.
    """
    values = read_yaml(file)
    own = values.get("variants") or {}
    at_scale = _at_scale(values.pop("scales", None) or {}, scale, scales, f"{short(file)}: scales")
    defaults = merge(values.pop("defaults", {}), at_scale.get("defaults", {}))
    at_scale = {key: value for key, value in at_scale.items() if key != "defaults"}
    overrides = config.overrides.get(file.parent.name, {})
    for changes, where in ((at_scale, f"{short(file)}: scales.{scale}"), (overrides, "config: overrides")):
        values = merge(values, _by_variant(changes, own, where))
    where = f"{short(file)} with config's overrides" if overrides else str(short(file))
    if isinstance(values, Mapping) and isinstance(values.get("variants"), Mapping):
        variants = {name: merge(defaults, variant) for name, variant in values["variants"].items()}
        for name, variant in variants.items():
            if name not in own and isinstance(variant, Mapping) and "title" not in variant:
                hint = nearest(str(name), own)
                raise UserError(f"{where}: variants: there is no variant '{name}'{hint}; a new one needs a title")
        values = {**values, "variants": variants}
    return check(Paper, values, where)


def _by_variant(changes: Any, known: Collection[str], where: str) -> Any:
    """Return changes in which those of patterns, such as `mnist-*`, are given to each variant that matches.

    Changes of a variant by its name come last.
    """
    if not isinstance(changes, Mapping) or not isinstance(changes.get("variants"), Mapping):
        return changes
    every = [*known, *(name for name in changes["variants"] if "*" not in str(name))]
    found: dict[str, Any] = {}
    for name, change in sorted(changes["variants"].items(), key=lambda each: "*" not in str(each[0])):
        matched = fnmatch.filter(dict.fromkeys(every), name) if "*" in str(name) else [name]
        if not matched:
            raise UserError(f"{where}.variants: no variant matches '{name}'")
        for each in matched:
            found[each] = merge(found[each], change) if each in found else change
    return {**changes, "variants": found}


def _at_scale(changes: Any, scale: str, scales: Collection[str], where: str) -> Mapping[str, Any]:
    """Check the section `scales` of a paper's file, `changes`, and return its part for one scale."""
    if not isinstance(changes, Mapping):
        raise UserError(f"{where}: expected a mapping of scales to changes")
    for name, part in changes.items():
        if name not in scales:
            raise UserError(f"{where}: there is no scale '{name}'{nearest(str(name), scales)}")
        if not isinstance(part, Mapping | None):
            raise UserError(f"{where}.{name}: expected a mapping of keys to values")
    return changes.get(scale) or {}


def variants_at_any_scale(file: Path) -> set[str]:
    """Return the variants in a paper's file, with those that it has at some scales only."""
    values = read_yaml(file)
    parts = [values, *(values.get("scales") or {}).values()]
    return {name for part in parts if part for name in part.get("variants") or ()}


def _with_own_classes(project: Project) -> Project:
    """Give the models that are trained on the user's own data as many classes as these have."""
    classes: dict[str, int] = {}
    for name, own in project.own.items():
        try:
            classes[name] = number_of_classes(Path(own.path))
        except UserError as error:
            raise UserError(f"config: datasets.{name}: {error}") from error

    def fitted(variant: Variant) -> Variant:
        _, own = project.origin(project.dataset(variant.data.split("/")[0]))
        if own is None:
            return variant
        try:
            variant.model.check_classes(classes[own])
            return variant
        except UserError:
            key = "capsules" if "capsules" in type(variant.model).model_fields else "classes"
            return variant.model_copy(update={"model": variant.model.model_copy(update={key: classes[own]})})

    def all_fitted(papers: Mapping[str, Paper]) -> dict[str, Paper]:
        return {
            name: paper.model_copy(update={"variants": {key: fitted(each) for key, each in paper.variants.items()}})
            for name, paper in papers.items()
        }

    if not classes:
        return project
    elsewhere = {scale: all_fitted(papers) for scale, papers in project.elsewhere.items()}
    return project.model_copy(update={"papers": all_fitted(project.papers), "elsewhere": elsewhere})


def _without(project: Project) -> Project:
    """Leave out the variants and data sets in `config.without`, and what needs one of the sets."""
    variants = _variants(project)
    for name in project.config.without:
        kind, known = ("variant", variants) if "/" in name else ("data set", catalogue.names())
        if name not in known:
            raise UserError(f"config: without: there is no {kind} '{name}'{nearest(name, known)}")
    reduced = _leaving_out(project, project.config.without)
    for name, paper in reduced.papers.items():
        if not paper.variants:
            raise UserError(
                f"config: without: nothing of the paper '{name}' is left; list the other papers in `papers`"
            )
    return reduced


def _only(project: Project) -> Project:
    """Leave out all variants but those that `config.only` matches, and papers of which nothing is left."""
    variants, kept = _variants(project), set[str]()
    for name in project.config.only:
        matched = fnmatch.filter(variants, name if "/" in name else f"*/{name}")
        if not matched:
            known = variants if "/" in name else [each.partition("/")[2] for each in variants]
            lost = (each.reason(name.removeprefix(f"{paper}/")) for paper, each in project.left_out.items())
            reason = next(filter(None, lost), f"there is no variant '{name}'{nearest(name, known)}")
            raise UserError(f"config: only: {reason}")
        kept.update(matched)
        # The record of a variant has less without those beside it.
        for each in matched:
            paper, _, variant = each.partition("/")
            kept.update(f"{paper}/{beside}" for beside in project.papers[paper].variants[variant].beside)
    reduced = _leaving_out(project, [*project.config.without, *(each for each in variants if each not in kept)])
    papers = {name: paper for name, paper in reduced.papers.items() if paper.variants}
    left_out = {name: lost for name, lost in reduced.left_out.items() if name in papers}
    return reduced.model_copy(update={"papers": papers, "left_out": left_out})


def _variants(project: Project) -> list[str]:
    return [f"{paper}/{variant}" for paper in project.papers for variant in project.papers[paper].variants]


def _leaving_out(project: Project, named: Sequence[str]) -> Project:
    def lacks(set_name: str) -> list[str]:
        return [name for name in named if name in project.sources(set_name)]

    reduced = {name: leave_out(name, paper, lacks, named) for name, paper in project.papers.items()}
    papers = {name: paper for name, (paper, _) in reduced.items()}
    left_out = {name: lost for name, (_, lost) in reduced.items() if lost is not None}
    return project.model_copy(update={"papers": papers, "left_out": left_out})


def _studies(project: Project, known: Collection[str]) -> dict[str, Studied]:
    """Return the studies of the papers and the user's own. `known`: all papers.

    A study of a variant that was left out is left out.
    """
    studies: dict[str, Studied] = {}
    for name, paper in project.papers.items():
        lost = project.left_out[name].variants if name in project.left_out else {}
        for key, study in paper.studies.items():
            if not any(fnmatch.filter(lost, each) for each in study.every_of):
                where = f"{short(found.FOLDER / name / 'paper.yaml')}: studies.{key}"
                studies[f"{name}.{key}"] = studied(paper, key, study, where)
    for key, study in project.config.studies.items():
        where, of = f"config: studies.{key}", {name: _of_paper(study, name) for name in known}
        for each in study.every_of:
            name, _, variant = each.partition("/")
            if name not in known or not variant:
                raise UserError(
                    f"{where}.of: '{each}' is no paper/variant{nearest(name, known)}; e.g. sparse/sparsecaps"
                )
            if name not in project.papers:
                raise UserError(f"{where}.of: the paper '{name}' is not in `papers`")
            if reason := project.left_out[name].reason(variant) if name in project.left_out else "":
                raise UserError(f"{where}.of: {reason}")
        for name in (name for name in project.papers if of[name].every_of):
            if f"{name}.{key}" in studies:
                raise UserError(f"{where}: the paper '{name}' has a study of this name; choose another")
            studies[f"{name}.{key}"] = studied(project.papers[name], key, of[name], where, reported=True)
    return studies


def _of_paper(study: Study, paper: str) -> Study:
    """Return the part of a user's study that is of a paper, without the paper's name; `of` may be empty."""

    def own(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(each.partition("/")[2] for each in names if each.partition("/")[0] == paper)

    rows = {row: each.model_copy(update={"of": own(each.of or study.of)}) for row, each in study.rows.items()}
    return study.model_copy(update={"of": own(study.of), "rows": {row: each for row, each in rows.items() if each.of}})


def _names(folder: Path) -> list[str]:
    return sorted(file.stem for file in Path(folder).glob("*.yaml"))
