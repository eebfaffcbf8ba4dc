"""Draw one table of one paper from saved results."""

from pathlib import Path

from recaps.workflow.job import job

with job(snakemake):
    from recaps.report.draw import table
    from recaps.workflow.results import saved_results

    table(snakemake.wildcards.table, saved_results(snakemake), Path(snakemake.output.csv).parent)
