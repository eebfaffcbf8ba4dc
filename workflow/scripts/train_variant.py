"""Train one variant of one paper with one seed."""

from pathlib import Path

from recaps.workflow.job import device, given, job, project_root

with job(snakemake):
    from recaps.training.run import train

    test = [Path(file).parent for file in snakemake.input.test]
    train(
        snakemake.params.settings,
        identity={key: snakemake.wildcards[key] for key in ("paper", "variant", "scale")},
        seed=int(snakemake.wildcards.seed),
        dataset=Path(snakemake.input.dataset[0]).parent,
        test=test[0] if test else None,
        out=Path(snakemake.output.model).parent,
        checkpoints=Path(snakemake.params.checkpoints),
        device=device(snakemake),
        threads=snakemake.threads,
        # Read from the configuration, as the device is: other times are no reason to train again.
        checkpoint_seconds=snakemake.config.get("checkpoint_seconds", 120),
        project=project_root(snakemake),
        given=given(snakemake),
    )
