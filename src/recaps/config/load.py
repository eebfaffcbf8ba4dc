"""From YAML files to a checked configuration: merge, validate, and tell a mistake in one line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from recaps import papers as found
from recaps.config.base import Section
from recaps.config.variant import Paper
from recaps.config.without import LeftOut, leave_out
from recaps.config.workflow import Config, Scale
from recaps.datasets import catalogue
from recaps.errors import UserError, nearest

Model = TypeVar("Model", bound=BaseModel)


class Project(Section):
    """The whole configuration: the user's, the scale's, and every chosen paper with scale and overrides merged in."""

    config: Config
    scale: Scale
    papers: dict[str, Paper]
    left_out: dict[str, LeftOut] = {}
    """What the papers go without, for data sets that cannot be had."""

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.config.seeds or self.scale.seeds

    def dataset(self, name: str) -> str:
        """The set that stands for `name` at this scale, e.g. `affnist-generated` for `affnist`."""
        return {**self.scale.datasets, **self.config.datasets}.get(name, name)

    def resolve(self, set_name: str) -> str:
        """As `dataset`, for `name/split`."""
        name, split = set_name.split("/")
        return f"{self.dataset(name)}/{split}"

    def behind(self, set_name: str) -> set[str]:
        """The data sets behind `name/split`: the one that stands for it at this scale, and what that is made from."""
        name = self.dataset(set_name.split("/")[0])
        base = catalogue.entry(name).base if name in catalogue.names() else None
        return {name, base} if base else {name}


def load(values: Mapping[str, Any], folder: Path, papers: Path = found.FOLDER) -> Project:
    """Return the checked project, less what needs a data set that cannot be had (`without`).

    Args:
        values: the user's settings, as in `config.yaml`.
        folder: the folder `config/`, holding `scales/`.
        papers: the folder of the papers, each a folder with a `paper.yaml`.

    Raises:
        UserError: one line naming the file, the key and the nearest valid one.
    """
    config = check(Config, values, "config")
    scales = _names(folder / "scales")
    if config.scale not in scales:
        raise UserError(f"config: scale: there is no scale '{config.scale}'{nearest(config.scale, scales)}")
    known = found.names(papers)
    for paper in (*(config.papers or ()), *config.overrides):
        if paper not in known:
            raise UserError(f"config: papers: there is no paper '{paper}'{nearest(paper, known)}")
    scale_file = folder / "scales" / f"{config.scale}.yaml"
    scale = check(Scale, read_yaml(scale_file), str(scale_file))
    chosen = {name: _paper(papers / name / "paper.yaml", config, scale) for name in config.papers or known}
    project = Project(config=config, scale=scale, papers=chosen)
    return _without(project) if config.without else project


def _paper(file: Path, config: Config, scale: Scale) -> Paper:
    """Merge defaults <- variant <- scale <- user's overrides, apply the data-set replacements, and validate."""
    values = read_yaml(file)
    at_scale = values.pop("scales", {}).get(config.scale, {})
    defaults = values.pop("defaults", {})
    values = merge(values, {key: value for key, value in at_scale.items() if key != "defaults"})
    defaults = merge(defaults, at_scale.get("defaults", {}))
    overrides = config.overrides.get(file.parent.name, {})
    values = merge(values, overrides)
    if isinstance(values, Mapping) and isinstance(values.get("variants"), Mapping):
        variants = {name: merge(defaults, variant) for name, variant in values["variants"].items()}
        values = {**values, "variants": variants}
    return check(Paper, values, f"{file} with config's overrides" if overrides else str(file))


def _without(project: Project) -> Project:
    """Leave out what needs a data set that the user says cannot be had."""
    named = project.config.without
    for name in named:
        if name not in catalogue.names():
            raise UserError(f"config: without: there is no data set '{name}'{nearest(name, catalogue.names())}")

    def lacks(set_name: str) -> list[str]:
        return [name for name in named if name in project.behind(set_name)]

    reduced = {name: leave_out(paper, lacks) for name, paper in project.papers.items()}
    for name, (paper, _) in reduced.items():
        if not paper.variants:
            raise UserError(f"config: without: no variant of '{name}' is left; take that from papers")
    papers = {name: paper for name, (paper, _) in reduced.items()}
    left_out = {name: lost for name, (_, lost) in reduced.items() if lost is not None}
    return project.model_copy(update={"papers": papers, "left_out": left_out})


def merge(base: Any, change: Any) -> Any:
    """Deep merge of mappings; anything else is replaced."""
    if isinstance(base, Mapping) and isinstance(change, Mapping):
        merged = dict(base)
        for key, value in change.items():
            merged[key] = merge(base[key], value) if key in base else value
        return merged
    return change


def read_yaml(file: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{file}: no such file") from error
    except yaml.YAMLError as error:
        raise UserError(f"{file}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise UserError(f"{file}: a mapping of keys to values is needed")
    return values


def check(model: type[Model], values: Any, where: str) -> Model:
    """Validate `values`; a mistake becomes a UserError naming `where`, the key, and the nearest valid key."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{where}: {_first_line(error, model)}") from error


def _first_line(error: ValidationError, model: type[BaseModel]) -> str:
    # A misspelt key of a required setting is two errors; that it is unknown says more than that one is missing.
    first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    path, keys = _locate(model, [str(part) for part in first["loc"]])
    key = ".".join(path)
    if first["type"] == "extra_forbidden":
        return f"unknown key '{key}'{nearest(path[-1], keys)}"
    if first["type"] == "union_tag_invalid":
        tags = [tag.strip("' ") for tag in first["ctx"]["expected_tags"].split(",")]
        kind = "family" if "family" in first["ctx"]["discriminator"] else path[-1]
        return f"{key}: there is no {kind} '{first['ctx']['tag']}'{nearest(first['ctx']['tag'], tags)}"
    if path[-1:] == ["[key]"]:
        return f"{'.'.join(path[:-1])}: a name is made of lower-case letters, digits and dashes"
    message = str(first["msg"]).removeprefix("Value error, ").replace("a valid tuple", "a list")
    if message.startswith("Input should"):
        message += f", not {first['input']!r}"
    return f"{key}: {message}" if key else message


def _locate(model: type[BaseModel], path: list[str]) -> tuple[list[str], list[str]]:
    """Return the path as the user wrote it, and the valid keys of the section that its last part stands in.

    Pydantic puts the tag of a discriminated union into its paths (`model.capsnet.capsules`); the user's file has none.
    The keys are found by walking the JSON schema.
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
        written.append(part)
        keys = list(node.get("properties", {}))
        node = _child(node, part)
    return written, keys


def _resolve(node: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Follow references, and the only choice that is not null (`Part | None`)."""
    while True:
        choices = [choice for choice in node.get("anyOf", ()) if choice.get("type") != "null"]
        if "$ref" in node:
            node = definitions[node["$ref"].rsplit("/", 1)[-1]]
        elif len(choices) == 1:
            node = choices[0]
        else:
            return node


def _child(node: dict[str, Any], part: str) -> dict[str, Any]:
    """The schema of a section's key: its own, or that of the sections whose names the user chooses."""
    named = list(node.get("patternProperties", {}).values())
    child = node.get("properties", {}).get(part) or (named[0] if named else node.get("additionalProperties"))
    return child if isinstance(child, dict) else {}


def _names(folder: Path) -> list[str]:
    return sorted(file.stem for file in Path(folder).glob("*.yaml"))
