"""Time the training steps of several variants side by side."""

from pathlib import Path

from recaps.workflow.job import device, job, project_root

with job(snakemake):
    from recaps.training.timing import time_variants

    time_variants(
        snakemake.params.variants,
        {variant: Path(files[0]).parent for variant, files in snakemake.input.items()},
        Path(snakemake.output.timing),
        **snakemake.params.options,
        device=device(snakemake),
        threads=snakemake.threads,
        project=project_root(snakemake),
    )
