"""Draw one figure of one paper from saved results."""

from pathlib import Path

from recaps.workflow.job import job

with job(snakemake):
    from recaps.report.draw import figure
    from recaps.workflow.results import saved_results

    figure(snakemake.wildcards.figure, saved_results(snakemake), Path(snakemake.output.png).parent)
