"""Fetch one official file; what it must be is decided by its checksum, not by where it comes from."""

from pathlib import Path

from recaps.workflow.job import job

with job(snakemake, show=True, raw=True):
    from recaps.datasets.download import fetch
    from recaps.datasets.sources import file

    # The mirror is read from the configuration, not from params: another source is no reason to fetch again.
    fetch(
        file(snakemake.wildcards.dataset, snakemake.wildcards.file),
        Path(snakemake.output[0]).parent,
        mirror=snakemake.config.get("mirror"),
    )
