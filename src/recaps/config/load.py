"""Load the configuration: read YAML files, merge them, validate the result, report a mistake in one line."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from recaps import papers as found
from recaps.config.base import Section
from recaps.config.families import ModelOptions
from recaps.config.variant import Paper, Variant
from recaps.config.without import LeftOut, leave_out
from recaps.config.workflow import TEXT, Config, OwnData, Scale
from recaps.datasets import catalogue
from recaps.datasets.own import number_of_classes
from recaps.errors import UserError, nearest
from recaps.io import short

Model = TypeVar("Model", bound=BaseModel)

#: The scales of this repository, which its papers know also if the user's folder of the configuration has others.
_SCALES = found.FOLDER.parents[2] / "config" / "scales"

#: The safe loader in C, ten times as fast, where PyYAML was built with it.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Project(Section):
    """The whole configuration: the user's settings, the scale, and the chosen papers with all changes merged in."""

    config: Config
    scale: Scale
    papers: dict[str, Paper]
    left_out: dict[str, LeftOut] = {}
    """The parts of the papers that are left out (`without`)."""
    elsewhere: dict[str, dict[str, Paper]] = {}
    """Papers at other scales whose networks are timed, by scale and name."""

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
        `mnist-40`, which is derived from it.
        """
        replaced = self.replaced
        found = replaced.get(name, name)
        if found in self.own:
            return f"{name}-{found}"
        generated = catalogue.GENERATED.get(found, found)
        base = catalogue.entry(generated).base if generated in catalogue.names() else None
        own = replaced.get(base, "") if base else ""
        return f"{generated}-{own}" if own in self.own else found

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
        origins = {self.origin(self.dataset(name.split("/")[0])) for name in self.papers[paper].used_sets}
        return sorted({f"{own} in place of {catalogue.entry(like).base or like}" for like, own in origins if own})

    def stand_in(self, set_name: str) -> bool:
        """Return whether `name/split` is stand-in data at this scale."""
        return self.scale.stand_in and self.origin(self.dataset(set_name.split("/")[0]))[1] is None

    def resolve(self, set_name: str) -> str:
        """Like `dataset`, for `name/split`."""
        name, split = set_name.split("/")
        return f"{self.dataset(name)}/{split}"

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
    return _without(project) if config.without else project


def _paper(file: Path, config: Config, scale: str, scales: Collection[str]) -> Paper:
    """Read a paper's file, merge in a scale's changes, the user's overrides and the defaults, and validate it.

    The file may change settings for `scales`.
    """
    values = read_yaml(file)
    own = values.get("variants") or {}
    at_scale = _at_scale(values.pop("scales", None) or {}, scale, scales, f"{short(file)}: scales")
    defaults = values.pop("defaults", {})
    values = merge(values, {key: value for key, value in at_scale.items() if key != "defaults"})
    defaults = merge(defaults, at_scale.get("defaults", {}))
    overrides = config.overrides.get(file.parent.name, {})
    values = merge(values, overrides)
    where = f"{short(file)} with config's overrides" if overrides else str(short(file))
    if isinstance(values, Mapping) and isinstance(values.get("variants"), Mapping):
        variants = {name: merge(defaults, variant) for name, variant in values["variants"].items()}
        for name, variant in variants.items():
            if name not in own and isinstance(variant, Mapping) and "title" not in variant:
                hint = nearest(str(name), own)
                raise UserError(f"{where}: variants: there is no variant '{name}'{hint}; a new one needs a title")
        values = {**values, "variants": variants}
    return check(Paper, values, where)


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
        return variant.model_copy(update={"model": _fitted(variant.model, classes[own])}) if own else variant

    def all_fitted(papers: Mapping[str, Paper]) -> dict[str, Paper]:
        return {
            name: paper.model_copy(update={"variants": {key: fitted(each) for key, each in paper.variants.items()}})
            for name, paper in papers.items()
        }

    if not classes:
        return project
    elsewhere = {scale: all_fitted(papers) for scale, papers in project.elsewhere.items()}
    return project.model_copy(update={"papers": all_fitted(project.papers), "elsewhere": elsewhere})


def _fitted(model: ModelOptions, classes: int) -> ModelOptions:
    """Return the settings with one capsule or output for each class, if the model has such a setting."""
    try:
        model.check_classes(classes)
        return model
    except UserError:
        key = "capsules" if "capsules" in type(model).model_fields else "classes"
        return model.model_copy(update={key: classes})


def _without(project: Project) -> Project:
    """Leave out the variants in `config.without`, and what needs one of its data sets."""
    named = project.config.without
    variants = [f"{paper}/{variant}" for paper in project.papers for variant in project.papers[paper].variants]
    for name in named:
        kind, known = ("variant", variants) if "/" in name else ("data set", catalogue.names())
        if name not in known:
            raise UserError(f"config: without: there is no {kind} '{name}'{nearest(name, known)}")

    def lacks(set_name: str) -> list[str]:
        return [name for name in named if name in project.sources(set_name)]

    reduced = {name: leave_out(name, paper, lacks, named) for name, paper in project.papers.items()}
    for name, (paper, _) in reduced.items():
        if not paper.variants:
            raise UserError(
                f"config: without: nothing of the paper '{name}' is left; list the other papers in `papers`"
            )
    papers = {name: paper for name, (paper, _) in reduced.items()}
    left_out = {name: lost for name, (_, lost) in reduced.items() if lost is not None}
    return project.model_copy(update={"papers": papers, "left_out": left_out})


def merge(base: Any, change: Any) -> Any:
    """Merge two mappings, and the mappings in them; `change` replaces anything else.

    A section with another `name`, such as that of a routing, replaces the section: their options differ.
    """
    if isinstance(base, str) and isinstance(change, Mapping):
        base = {"name": base}
    if isinstance(base, Mapping) and isinstance(change, Mapping):
        if base.get("name") != change.get("name", base.get("name")):
            return change
        merged = dict(base)
        for key, value in change.items():
            merged[key] = merge(base[key], value) if key in base else value
        return merged
    return change


def merged(sources: Iterable[Path | Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the settings of several sources, files or mappings. Later sources override earlier ones.

    A missing file has no settings: Snakemake has already reported those that the user named.
    """
    values: dict[str, Any] = {}
    for source in sources:
        if isinstance(source, Mapping):
            values = merge(values, source)
        elif source.exists():
            values = merge(values, read_yaml(source))
    return values


def read_yaml(file: Path) -> dict[str, Any]:
    try:
        text = Path(file).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UserError(f"{short(file)}: no such file") from error
    except OSError as error:
        raise UserError(f"{short(file)}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{short(file)}: not UTF-8 text; save it in this encoding") from error
    return mapping(text, str(short(file)))


def mapping(text: str, where: str) -> dict[str, Any]:
    """Parse YAML. Text that is not a mapping raises UserError with `where`."""
    try:
        values = yaml.load(text, Loader=_LOADER)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date such as 2020-99-99
        raise UserError(f"{where}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise UserError(f"{where}: expected a mapping of keys to values")
    return values


def check(model: type[Model], values: Any, where: str) -> Model:
    """Validate `values`. A mistake raises UserError with `where`, the key and the nearest valid key."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{where}: {_first_line(error, model)}") from error


def _first_line(error: ValidationError, model: type[BaseModel]) -> str:
    # A misspelt key of a required setting causes two errors. "Unknown key" is more helpful than "missing".
    first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    path, keys = _locate(model, [str(part) for part in first["loc"]])
    key = ".".join(path)
    if first["type"] == "extra_forbidden":
        return f"unknown key '{key}'{nearest(path[-1], keys)}"
    if first["type"] == "union_tag_invalid":
        tags = [tag.strip("' ") for tag in first["ctx"]["expected_tags"].split(",")]
        kind = "family" if "family" in first["ctx"]["discriminator"] else path[-1]
        return f"{key}: there is no {kind} '{first['ctx']['tag']}'{nearest(first['ctx']['tag'], tags)}"
    if first["type"] == "union_tag_not_found":
        return f"{key}: {first['ctx']['discriminator']} is missing"
    if path[-1:] == ["[key]"]:
        return f"{'.'.join(path[:-1])}: a name consists of lower-case letters, digits and dashes"
    message = str(first["msg"]).removeprefix("Value error, ").replace("a valid tuple", "a list")
    message = re.sub(r"a valid dictionary.*", "a mapping", message)
    if message.startswith("Input should"):
        message += f", not {first['input']!r}"
    return f"{key}: {message}" if key else message


def _locate(model: type[BaseModel], path: list[str]) -> tuple[list[str], list[str]]:
    """Return the path as the user wrote it, and the valid keys of the section that holds its last part.

    Pydantic's paths contain the tags of unions (`model.supcaps.capsules`); the user's file does not. The function
    follows the path through the JSON schema.
    """
    schema = model.model_json_schema()
    node = schema
    written: list[str] = []
    keys: list[str] = []
    for part in path:
        node = _resolve(node, schema.get("$defs", {}))
        tags = node.get("discriminator", {}).get("mapping", {})
        if part in tags:
            node = {"$ref": tags[part]}
            continue
        if part in (TEXT, node.get("title")):
            continue
        written.append(part)
        keys = list(node.get("properties", {}))
        node = _child(node, part)
    return written, keys


def _resolve(node: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Follow references, and unions of one section with null or text (`Part | None`)."""
    while True:
        every = node.get("anyOf", node.get("oneOf", ()))
        choices = [choice for choice in every if choice.get("type") not in ("null", "string")]
        if "$ref" in node:
            node = definitions[node["$ref"].rsplit("/", 1)[-1]]
        elif len(choices) == 1:
            node = choices[0]
        else:
            return node


def _child(node: dict[str, Any], part: str) -> dict[str, Any]:
    """Return the schema of a key: its own, or, where the user chooses the keys, that of all keys."""
    named = list(node.get("patternProperties", {}).values())
    child = node.get("properties", {}).get(part) or (named[0] if named else node.get("additionalProperties"))
    return child if isinstance(child, dict) else {}


def _names(folder: Path) -> list[str]:
    return sorted(file.stem for file in Path(folder).glob("*.yaml"))
