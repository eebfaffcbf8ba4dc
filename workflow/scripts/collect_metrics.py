"""Collect every number that was measured for one paper."""

from pathlib import Path

from recaps.workflow.job import job

with job(snakemake):
    from recaps.report.draw import metrics
    from recaps.workflow.results import saved_results

    metrics(saved_results(snakemake), Path(snakemake.output.metrics).parent)
