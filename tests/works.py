"""A variant for each kind of work that a training step does at scale `smoke`, by `paper/variant`."""

from __future__ import annotations

from places import CONFIG

from recaps.config.load import load
from recaps.config.variant import Variant
from recaps.step_times import work_of


def variants() -> dict[str, Variant]:
    papers = load({"scale": "smoke"}, CONFIG).papers
    every = {f"{paper}/{name}": each for paper in papers for name, each in papers[paper].variants.items()}
    works = {work_of(each): name for name, each in reversed(every.items())}
    return {name: each for name, each in every.items() if works[work_of(each)] == name}


VARIANTS = variants()
