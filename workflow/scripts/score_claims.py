"""Set every claim of the papers beside what was measured."""

from pathlib import Path

from recaps.workflow.job import job

with job(snakemake):
    from recaps.config.without import LeftOut
    from recaps.report.scorecard import make

    make(
        [Path(file) for file in snakemake.input.claims],
        [Path(file) for file in snakemake.input.metrics],
        [Path(file) for file in snakemake.input.records],
        Path(snakemake.output.csv).parent,
        scale=snakemake.wildcards.scale,
        papers=snakemake.params.papers,
        left_out={name: LeftOut.model_validate(lost) for name, lost in snakemake.params.left_out.items()},
    )
