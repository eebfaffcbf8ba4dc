"""Extract the latents that one trained model gives for one split."""

from pathlib import Path

from recaps.workflow.job import device, job

with job(snakemake):
    from recaps.evaluation.latents import extract

    extract(
        Path(snakemake.input.model).parent,
        Path(snakemake.input.dataset[0]).parent,
        Path(snakemake.output.latents),
        limit=snakemake.params.limit,
        device=device(snakemake),
        threads=snakemake.threads,
    )
