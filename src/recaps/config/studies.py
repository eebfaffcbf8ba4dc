"""Studies: runs that vary options of a paper's variants, beside the paper's own runs.

A study becomes a paper of its own, `<paper>.<study>`, whose variants are its rows. So its runs are made, identified and
recorded like all others, with the code of its paper.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from recaps.config.base import Name, snapshot_of
from recaps.config.heads import Head
from recaps.config.reading import check, merge
from recaps.config.variant import Paper, Study, StudyRow, Variant
from recaps.datasets import catalogue
from recaps.errors import UserError, nearest
from recaps.papers import of

RowName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")]

#: The part of a train split that takes the place of a split in studies that are judged on held-out images.
PART_OF = {"train": "learn", "test": "held_out"}
#: Keys of a variant that a study replaces as a whole.
WHOLE = ("latents", "heads", "probes")
#: Keys that are no options, and what to write instead.
FIXED = {"seeds": "; set the study's `seeds`", "title": "", "own_heads": "; write heads.<head>.<option>"}
#: Longest name of a row: it becomes a part of the names of folders and logs.
LONGEST = 150

Values = dict[str, Any]


class Row(Variant):
    """A variant of a study."""

    start: RowName | None = None
    """The row whose trained weights it starts from."""
    own_heads: dict[Name, Head] = {}
    """The heads whose settings it changes."""
    beside: tuple[RowName, ...] = ()


class Studied(Paper):
    """A study, as a paper."""

    variants: dict[RowName, Row]  # type: ignore[assignment]
    study: Study
    changes: dict[RowName, Values]
    """What each row of the table changes, by the heading of a column."""
    reported: bool = False
    """Whether the report shows it, as a study in the user's own settings."""

    def head(self, variant: str, head: str) -> Head:
        return self.variants[variant].own_heads.get(head, self.heads[head])


def held_out(set_name: str) -> str:
    """Return the part of a train split that takes the place of a split, e.g. `mnist/held_out` of `mnist/test`.

    A part stays. Held-out images of affNIST are generated from held-out digits of MNIST. Raise UserError if no part
    takes its place.
    """
    each, snapshot = snapshot_of(set_name)
    name, split = each.split("/")
    if split in PART_OF.values():
        return set_name
    name, part = catalogue.GENERATED.get(name, name), PART_OF.get(split)
    if part not in catalogue.splits(name):
        raise UserError(f"no held-out images take the place of {each}; set `judged: test`")
    return f"{name}/{part}" + (f"@{snapshot}" if snapshot else "")


def studied(paper: Paper, name: str, study: Study, where: str, *, reported: bool = False) -> Studied:
    """Return a study of `paper`, as a paper.

    Args:
        name: the study's name.
        study: the study; `of` names no paper.
        where: the file and key of the study, for messages.
        reported: whether the report shows it.

    Raises:
        UserError: a mistake in the study.
    """
    rows, changes, bases = dict[str, Values](), dict[str, Values](), dict[str, str]()
    for key, base, cells, options, seeds in _rows(paper, study, where):
        if key in rows:
            raise UserError(f"{where}: two rows would be called {key}; give them names (`rows`)")
        if key in paper.variants and key != base:
            raise UserError(f"{where}: a row would be called {key}, as a variant is; give it another name")
        if len(key) > LONGEST:
            raise UserError(f"{where}: the name {key[:40]}... is too long for a folder; give the row a name (`rows`)")
        if (start := options.get("start")) and start not in rows:
            raise UserError(f"{where}: {key}: there is no row '{start}' above to start from{nearest(start, rows)}")
        rows[key] = {**_changed(paper, base, options, f"{where}: {key}"), "seeds": seeds}
        changes[key], bases[key] = cells, base
    every = dict.fromkeys(bases.values())
    titles = [paper.variants[base].title for base in every]
    named = {base: title if titles.count(title) == 1 else base for base, title in zip(every, titles, strict=True)}
    if len(every) > 1 or not any(changes.values()):
        changes = {key: {"variant": named[bases[key]], **cells} for key, cells in changes.items()}
    for other in dict.fromkeys(each for row in rows.values() for each in row.get("beside", ())):
        rows.setdefault(other, {**_changed(paper, other, {}, where), "seeds": study.seeds})
    limits = paper.limits
    used = {each for row in rows.values() for every in row.get("heads", {}).values() for each in every}
    protocols = {key: each.model_dump(exclude_unset=True) for key, each in paper.protocols.items() if key in used}
    if study.judged == "held-out":
        try:
            rows = {key: _moved(row) for key, row in rows.items()}
            protocols = {key: _moved_parts(each) for key, each in protocols.items()}
            limits = _moved_limits(limits)
        except UserError as error:
            raise UserError(f"{where}: {error}") from error
    images = {"held-out": "held-out training images", "test": "test images"}[study.judged]
    about = {"title": study.title or f"Study: {name}", "caption": f"{study.caption} Judged on {images}.".lstrip()}
    values = {
        **paper.model_dump(include={"authors", "reference", "heads"}),
        "title": about["title"],
        "protocols": protocols,
        "limits": limits,
        "variants": rows,
        "tables": {"table": about},
        "figures": {"figure": about} if study.figure else {},
        "study": study,
        "changes": changes,
        "reported": reported,
    }
    return check(Studied, values, where)


def training_of(name: str, variant: Variant) -> str:
    """Return what two variants with the same trained model have in common. `name`: the paper or study."""
    start = f"{name}/{variant.start}" if isinstance(variant, Row) and variant.start else None
    model = variant.model.model_dump_json(exclude=variant.model.unread())
    return f"{of(name)} {variant.data} {start} {model} {variant.training.model_dump_json()}"


def _rows(paper: Paper, study: Study, where: str) -> Iterator[tuple[str, str, Values, Values, tuple[int, ...] | None]]:
    """Yield the name of each row, its variant, its cells in the table, its options, and its seeds."""
    for row, given in (study.rows or {"": StudyRow()}).items():
        vary = study.vary if given.vary is None else given.vary
        if double := [key for key in vary if key in given.options]:
            raise UserError(f"{where}: rows.{row}: {double[0]} is both set and varied")
        # The last part of each option's name, or the whole name where two have the same last part.
        last = [each.rpartition(".")[2] for each in vary]
        short = {each: part if last.count(part) == 1 else each for each, part in zip(vary, last, strict=True)}
        patterns = given.of or study.of
        for each in patterns:
            if not paper.matching((each,)):
                raise UserError(f"{where}.of: there is no variant '{each}'{nearest(each, paper.variants)}")
        for base, values in itertools.product(paper.matching(patterns), itertools.product(*vary.values())):
            varied = dict(zip(vary, values, strict=True))
            cells = {short[key]: value for key, value in varied.items()}
            words = [base, *([row] if row else []), *(f"{key}-{_word(value)}" for key, value in cells.items())]
            start = {"start": f"{base}-{given.start}".lower().replace("_", "-")} if given.start else {}
            yield (
                "-".join(words).lower().replace("_", "-"),
                base,
                ({"row": row} if row else {}) | cells,
                {**study.fixed, **given.options, **varied, **start},
                given.seeds or study.seeds,
            )


def _word(value: Any) -> str:
    """Return a value as a part of a row's name."""
    values = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else [value]
    text = "-".join("none" if each is None else re.sub(r"^-(?=[\d.])", "minus-", str(each)) for each in values)
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or "empty"


def _changed(paper: Paper, base: str, options: Values, where: str) -> Values:
    """Return the settings of a variant with options changed. Raise UserError if one has no effect or is not valid."""
    variant = paper.variants[base]
    made: Values = variant.model_dump(mode="json", exclude_unset=True)
    # A row may have other snapshots.
    added = paper.of_snapshots(variant, {name for names in variant.heads.values() for name in names})
    made["heads"] = {head: [name for name in names if name not in added] for head, names in variant.heads.items()}
    changes: Values = {}
    for name, value in options.items():
        if name in FIXED:
            raise UserError(f"{where}: {name} is no option of a row{FIXED[name]}")
        if name in WHOLE:
            made[name] = value
            continue
        for part in reversed(name.split(".")):
            value = {part: value}
        changes = merge(changes, value)
    own = changes.pop("heads", {})
    for head in own:
        if head not in made["heads"]:
            raise UserError(f"{where}: '{base}' has no head '{head}'{nearest(head, made['heads'])}")
    heads = {head: merge(paper.heads[head].model_dump(), each) for head, each in own.items()}
    made = {**merge(made, changes), "own_heads": heads}
    check(Row, made, where)
    for each in made.get("beside", ()):
        if each not in paper.variants:
            raise UserError(f"{where}: beside: there is no variant '{each}'{nearest(each, paper.variants)}")
    return made


def _moved(row: Values) -> Values:
    """Return the settings of a variant with held-out images in place of test images."""
    if row["data"].split("/")[1] not in ("train", "learn"):
        raise UserError(f"data: {row['data']} is no training split; set `judged: test`")
    latents = {held_out(name): limit for name, limit in row.get("latents", {}).items()}
    images = [held_out(name) for name in row.get("images", ())]
    return {**row, "data": held_out(row["data"]), "latents": latents, "images": images}


def _moved_limits(limits: Mapping[str, int]) -> dict[str, int]:
    """Like `_moved`, for limits, whose sets may be patterns."""
    moved = dict(limits)
    for each, limit in limits.items():
        name, slash, split = each.partition("/")
        moved[f"{catalogue.GENERATED.get(name, name)}{slash}{PART_OF.get(split, split)}"] = limit
    return moved


def _moved_parts(protocol: Values) -> Values:
    """Like `_moved`, for a protocol."""
    parts = {key: part for key, part in protocol.items() if isinstance(part, Mapping)}
    title = f"{protocol['title']}; held-out images take the place of test images"
    return protocol | {"title": title} | {key: {**part, "set": held_out(part["set"])} for key, part in parts.items()}
