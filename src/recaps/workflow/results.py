"""What a paper's tables and figures are drawn from, as a rule hands it over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recaps.config.load import Project
from recaps.report.claims import Printed
from recaps.report.results import Results


def saved_results(snakemake: Any) -> Results:
    """The saved results of the paper in the rule's wildcards.

    Of the rule: params `project` (the configuration) and `printed`, and an output in `<root>/papers/<paper>/`.
    """
    project = Project.model_validate(snakemake.params.project)
    name = snakemake.wildcards.paper
    folder = Path(snakemake.output[0]).parent
    return Results(
        name=name,
        paper=project.papers[name],
        runs=folder.parents[1] / "runs" / name,
        folder=folder,
        seeds=project.seeds,
        resolve=project.resolve,
        printed={claim: Printed(*each) for claim, each in snakemake.params.printed.items()},
        stand_in=project.scale.stand_in,
    )
