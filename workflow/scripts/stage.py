"""Run the stage of a rule: the function of `recaps.workflow.stages` with the rule's name.

A rule for one paper is called `<stage>_of_<paper>`.
"""

from recaps.workflow import stages
from recaps.workflow.job import job

with job(snakemake):
    stages.make(snakemake.rule.partition("_of_")[0], snakemake)
