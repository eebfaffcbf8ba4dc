"""Prepare one split of one data set."""

from pathlib import Path

from recaps.workflow.job import job

with job(snakemake):
    from recaps.datasets.preparation import prepare

    prepare(
        snakemake.wildcards.dataset,
        snakemake.wildcards.split,
        Path(snakemake.config.get("data", "data")),
        Path(snakemake.output.record).parents[2],
        stand_in=snakemake.params.stand_in,
        options=snakemake.params.options,
    )
