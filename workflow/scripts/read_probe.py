"""Read one probe from one trained model."""

from pathlib import Path

from recaps.workflow.job import device, job

with job(snakemake):
    from recaps.evaluation.probes import probe

    probe(
        Path(snakemake.input.model).parent,
        Path(snakemake.input.dataset[0]).parent,
        Path(snakemake.output.probe),
        name=snakemake.wildcards.probe,
        images=snakemake.params.images,
        device=device(snakemake),
        threads=snakemake.threads,
    )
