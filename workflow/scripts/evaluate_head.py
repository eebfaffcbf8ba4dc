"""Fit one head on latents and test it."""

from pathlib import Path

from recaps.workflow.job import job

with job(snakemake):
    from recaps.evaluation.heads import evaluate

    protocol = snakemake.params.protocol
    evaluate(
        {protocol[role]["set"]: Path(file) for role, file in snakemake.input.items()},
        snakemake.params.head,
        protocol,
        Path(snakemake.output.result),
    )
