"""Run the stage of a rule: the function of `recaps.workflow.stages` with the rule's name."""

from recaps.workflow import stages
from recaps.workflow.job import job

with job(snakemake):
    getattr(stages, snakemake.rule)(snakemake)
