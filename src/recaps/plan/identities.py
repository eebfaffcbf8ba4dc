"""What identifies the results of each stage: the settings and the modules that their numbers depend on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recaps.config.base import Section
from recaps.config.variant import Variant
from recaps.datasets import catalogue, checksums, sources
from recaps.identity import key
from recaps.io import digest_of
from recaps.papers import of
from recaps.plan import checks
from recaps.plan.modules import modules

if TYPE_CHECKING:
    from recaps.plan.plan import Plan

#: The modules that compute what a training leaves, besides the model's family.
TRAINING = ("recaps.training.step", "recaps.training.testing")
#: The modules that read a trained model, besides the model's family.
READING = ("recaps.evaluation.latents", "recaps.evaluation.probes", "recaps.evaluation.heads")


class Identities:
    """The identities of all results of a plan. Methods take the wildcards of a job."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def of(self, stage: str) -> Callable[[Any], dict[str, Any]]:
        """Return a function of wildcards that returns `settings` and `modules` of a stage's result.

        The third part, `data`, is known when the inputs are there.
        """
        settings, code = self._stages[stage]
        return lambda wildcards: {"settings": settings(wildcards), "modules": code(wildcards)}

    @functools.cached_property
    def _stages(self) -> dict[str, tuple[Callable[[Any], dict[str, Any]], Callable[[Any], dict[str, str]]]]:
        """The settings that the result of each stage depends on, and the digests of the modules that compute it."""
        plan = self.plan

        def drawing(stage: str, own: str = "") -> Callable[[Any], dict[str, str]]:
            """Stages that only collect and draw count with all their code, and with the paper's module `own`."""
            root = f"recaps.plan.stages:{stage}"
            return lambda names: modules([root, *(self._own_module(names.paper, own) if own else ())])

        def reading(names: Any) -> dict[str, str]:
            variant = plan.variant(names)
            return modules([*READING, *variant.model.modules, *probes_of(names.paper, variant)])

        def timing(names: Any) -> dict[str, str]:
            timed = plan.project.timed(names.paper, names.timing).values()
            families = (module for each in timed for module in each.model.modules)
            return modules([*TRAINING, "recaps.training.timing", *families])

        return {
            "prepare_dataset": (
                lambda names: plan.preparation(names) | {"files": self._official(names)},
                self._preparing,
            ),
            "train_variant": (
                lambda names: plan.training(names) | {"seed": int(names.seed)},
                lambda names: modules([*TRAINING, *plan.variant(names).model.modules]),
            ),
            "time_steps": (plan.timing, timing),
            "read_model": (plan.reading, reading),
            "evaluate_heads": (plan.fitted_heads, lambda names: modules(["recaps.evaluation.heads"])),
            "record_run": (self._measuring, lambda names: modules(self._recording(names))),
            "collect_metrics": (plan.measured, drawing("collect_metrics", "metrics")),
            "draw_tables": (lambda names: plan.drawn(names.paper, "tables"), drawing("draw_tables", "tables")),
            "draw_figures": (lambda names: plan.drawn(names.paper, "figures"), drawing("draw_figures", "figures")),
            "score_claims": (plan.judging, drawing("score_claims")),
            "build_report": (
                lambda names: {
                    "project": plan.settings(),
                    "readings": {file: digest_of(Path(file)) for file in plan.written("README.md")},
                },
                drawing("build_report"),
            ),
        }

    def read_model_codes(self, wildcards: Any) -> dict[str, str]:
        """Return what stands for the modules that compute latents, and for those that compute probes."""
        variant = self.plan.variant(wildcards)
        latents = ["recaps.evaluation.latents", *variant.model.modules]
        probes = [*latents, "recaps.evaluation.probes", *probes_of(wildcards.paper, variant)]
        return {name: key({"modules": modules(roots)}) for name, roots in (("latents", latents), ("probes", probes))}

    def _official(self, wildcards: Any) -> dict[str, str | None]:
        """Return the digests of the official files that a split is made from."""
        # None before the first download of a file without a published digest.
        files = {path: sources.file(path.parent.name, path.name) for path in map(Path, self.plan.raw_files(wildcards))}
        return {file.path: checksums.expected_digest(file, path.parent) for path, file in files.items()}

    def _preparing(self, wildcards: Any) -> dict[str, str]:
        """Return the digests of the modules that prepare a split: those of other sets do not count."""
        name, mine = self.plan.project.origin(wildcards.dataset)
        base = catalogue.entry(name).base or name
        official = f"formats.{catalogue.FORMATS[base]}"
        source = "own" if mine else "standin" if self.plan.project.scale.stand_in else official
        derived = [] if base == name else ["norb" if catalogue.plain(base) == "smallnorb" else "derived"]
        used = modules([f"recaps.datasets.{module}" for module in (source, *derived)])
        return {
            name: digest
            for name, digest in modules(["recaps.datasets.preparation"]).items()
            if name in used or name.rpartition(".")[2] in ("arrays", "preparation", "raw")
        }

    def _recording(self, wildcards: Any) -> list[str]:
        """Return the modules that measure a run: the paper's own, and the families of the models that it loads."""
        families = {module for each in self.plan.with_beside(wildcards).values() for module in each.model.modules}
        paper = f"recaps.papers.{of(wildcards.paper)}"
        measured = self._measure_of(wildcards)
        more = [f"{paper}.{measured.partition(':')[0]}"] if measured else []
        return [f"{paper}.record", "recaps.evaluation.record", *more, *sorted(families)]

    def _own_module(self, name: str, own: str) -> list[str]:
        """Return the paper's module `own`, if it has one; of a study, the one that draws its figure."""
        if study := self.plan.project.studies.get(name):
            own = (study.study.drawn_by or "").partition(":")[0] if own == "figures" else ""
        there = own and checks.paper_file(of(name), f"{own}.py").exists()
        return [f"recaps.papers.{of(name)}.{own}"] if there else []

    def _measure_of(self, wildcards: Any) -> str | None:
        study = self.plan.project.studies.get(wildcards.paper)
        return study.study.measure if study else None

    def _measuring(self, wildcards: Any) -> dict[str, Any]:
        """Return what a record depends on: no titles, and no other seeds."""
        paper = self.plan.project.every[wildcards.paper]

        def untitled(sections: Mapping[str, Section]) -> dict[str, Any]:
            return {name: each.model_dump(mode="json", exclude={"title", "seeds"}) for name, each in sections.items()}

        return {
            "variants": untitled(self.plan.with_beside(wildcards)),
            "heads": untitled(paper.heads),
            "protocols": untitled(paper.protocols),
            "datasets": self.plan.project.replaced,
            "beside": self.plan.beside(wildcards),
            **({"measure": measure} if (measure := self._measure_of(wildcards)) else {}),
        }


def probes_of(paper: str, variant: Variant) -> list[str]:
    """Return the module of the variant's probes."""
    return [f"recaps.papers.{of(paper)}.probes"] if variant.probes else []
