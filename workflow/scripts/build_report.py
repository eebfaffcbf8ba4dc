"""Build the report: one page with the scorecard, every table and figure, and how each number was made."""

from pathlib import Path

from recaps.workflow.job import job

with job(snakemake):
    from recaps.config.load import Project
    from recaps.report.html import build

    out = Path(snakemake.output.html)
    readings = [Path(file) for file in snakemake.input.readings]
    build(Project.model_validate(snakemake.params.project), out.parent, out, readings=readings[0] if readings else None)
