"""Run the stage of a rule: the function of `recaps.plan.stages` with the rule's name.

A rule for one paper is called `<stage>_of_<paper>`.
"""

from recaps.plan import stages
from recaps.plan.job import job

with job(snakemake):
    stages.make(snakemake.rule.partition("_of_")[0], snakemake)
