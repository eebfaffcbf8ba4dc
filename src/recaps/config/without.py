"""A paper without some of its data sets or variants: leave out what needs them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from recaps.config.base import Name, Section
from recaps.config.variant import Output, Paper

#: Returns the data sets to leave out that a set (`name/split`) is, or is derived from.
Lacks = Callable[[str], Sequence[str]]


class LeftOut(Section):
    """The parts of a paper that are left out."""

    sets: tuple[Name, ...]
    """The data sets that are left out."""
    named: tuple[str, ...] = ()
    """The variants that are left out by name, as `paper/variant`; the rows of a published study that have no run."""
    variants: dict[Name, tuple[Name, ...]] = {}
    """The variants that are left out, each with the left-out sets that it needs; none if it is left out by name."""
    outputs: dict[Name, str] = {}
    """The tables and figures that are left out, with their titles."""

    def __str__(self) -> str:
        others = sorted(name for name, sets in self.variants.items() if sets)
        parts = [", ".join(others), *(title for _, title in sorted(self.outputs.items()))]
        lost = "; ".join(filter(None, parts))
        return f"without {', '.join([*self.sets, *self.named])}" + (f"; left out: {lost}" if lost else "")

    def reason(self, variant: str) -> str:
        """Return why `variant` is missing; empty if it is not left out."""
        if variant not in self.variants:
            return ""
        if not self.variants[variant]:
            return f"{variant} was left out (config: without or only)"
        return f"{variant} was left out: it needs {', '.join(self.variants[variant])} (config: without)"


def leave_out(name: str, paper: Paper, lacks: Lacks, named: Collection[str]) -> tuple[Paper, LeftOut | None]:
    """Leave out the parts of a paper that need a left-out set. Return the rest, and what is left out, if anything.

    A variant is left out if it needs such a set, or if it is in `named` as `paper/variant`. A timing is left out if all
    its variants are. A table or figure is left out if all its variants and timings are, or if it is `whole` and one of
    its variants is; otherwise its caption names what is missing.
    """
    unwanted = [variant for variant in paper.variants if f"{name}/{variant}" in named]
    # The test set of a variant is another split of the set that it is trained on.
    needed = {
        key: tuple(dict.fromkeys(lost for each in (own.data, *own.latents, *own.images) for lost in lacks(each)))
        for key, own in paper.variants.items()
    }
    gone = {variant: sets for variant, sets in needed.items() if sets or variant in unwanted}
    if not gone:
        return paper, None
    timings = {
        key: timing.model_copy(update={"variants": kept})
        for key, timing in paper.timings.items()
        if (kept := tuple(variant for variant in paper.matching(timing.variants) if variant not in gone))
    }
    outputs = {key: rest for key, output in paper.outputs.items() if (rest := _reduced(output, paper, gone))}
    sets = tuple(dict.fromkeys(each for lacking in gone.values() for each in lacking))
    changes = {
        "variants": {
            key: variant.model_copy(update={"beside": tuple(name for name in variant.beside if name not in gone)})
            for key, variant in paper.variants.items()
            if key not in gone
        },
        "timings": timings,
        "tables": {key: outputs[key] for key in paper.tables if key in outputs},
        "figures": {key: outputs[key] for key in paper.figures if key in outputs},
    }
    titles = {key: output.title for key, output in paper.outputs.items() if key not in outputs}
    left = tuple(f"{name}/{variant}" for variant in unwanted)
    return paper.model_copy(update=changes), LeftOut(sets=sets, named=left, variants=gone, outputs=titles)


def _reduced(output: Output, paper: Paper, gone: Mapping[str, tuple[str, ...]]) -> Output | None:
    """Reduce a table or figure to what is kept. Return None if that is nothing."""
    shown = paper.matching(output.needs)
    timed = {name: paper.matching(paper.timings[name].variants) for name in output.timings}
    read = dict.fromkeys([*shown, *(variant for names in timed.values() for variant in names)])
    lost = {name: gone[name] for name in read if name in gone}
    if not lost:
        return output
    if lost.keys() >= set(read) or (output.whole and not lost.keys().isdisjoint(shown)):
        return None
    missing = list(dict.fromkeys(name for sets in lost.values() for name in sets))
    needing, unwanted = [name for name in lost if lost[name]], [name for name in lost if not lost[name]]
    because = f", as {'it needs' if len(needing) == 1 else 'they need'} {', '.join(missing)}"
    sentences = [
        output.caption,
        *([f"Left out{because}: {', '.join(needing)}."] if needing else []),
        *([f"Left out: {', '.join(unwanted)}."] if unwanted else []),
    ]
    left = {
        "needs": tuple(name for name in shown if name not in gone),
        "timings": tuple(name for name in output.timings if not set(timed[name]) <= set(gone)),
        "caption": " ".join(sentences),
    }
    return output.model_copy(update=left)
