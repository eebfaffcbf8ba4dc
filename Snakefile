"""recaps: capsule-network papers, regenerated end to end.

This file loads the configuration and the rules, and defines the targets. `make help` lists them.
"""

import os
import sys
from functools import partial
from pathlib import Path

from snakemake.cli import parse_config
from snakemake.utils import min_version

from recaps import layout
from recaps.errors import UserError, nearest
from recaps.layout import DATASET_FILES, RUN_FILES, Layout, named
from recaps.plan.plan import exits, growing, start
from recaps.plan.state import State
from recaps.report.cost import summary

min_version("9.27")


sys.path.append(str(Path(workflow.basedir) / "workflow"))
import data_version
import failures
import times
import warm
from slurm_executor import attend


configfile: "config/config.yaml"


# Jobs draw to files. The environment may name a backend that is not installed here, as in a notebook's terminal.
os.environ.update(MPLBACKEND="agg")
attend()
times.ignore()
# Snakemake has merged the user's settings, but it knows no sections with a name, so the library merges them again. Only
# `config_settings`, which Snakemake does not document, keeps files and keys apart. Jobs get the same files and keys.
given = workflow.config_settings
plan = start(
    config,
    [
        *([] if given.replace_workflow_config else [Path("config/config.yaml")]),
        *given.configfiles,
        *(parse_config([key]) for key in given.config_args),
    ],
    Path(workflow.basedir),
)
state = State(plan)
# These make nothing, so they may run beside damaged results.
if workflow.is_main_process and not {"--unlock", "--lint"} & set(sys.argv):
    state.check(dry=bool({"-n", "--dry-run", "--dryrun"} & set(sys.argv)))
# Snakemake's own triggers are off (profiles/default): they know only what Snakemake itself made.
again = partial(state.again, workflow)

# The patterns of all files.
files = Layout(Path(plan.results, "{scale}"))
prepared = named(files.dataset(), DATASET_FILES)
trained = named(files.run(), RUN_FILES)


wildcard_constraints:
    **plan.patterns(),


include: "rules/data.smk"
include: "rules/train.smk"
include: "rules/latents.smk"
include: "rules/heads.smk"
include: "rules/records.smk"
include: "rules/papers.smk"
include: "rules/report.smk"


# The targets: what each is, in lists of them, what the last line of a run says, and the files.
targets = {
    "all": ("Everything: all papers, the scorecard and the report (the default)", "everything", plan.everything()),
    "data": ("The prepared data sets", "the prepared data sets", plan.prepared()),
    "train": ("All trained models", "all trained models", plan.models()),
    "latents": ("The latents of all trained models", "all latents", plan.latents()),
    "heads": ("The results of all heads", "all heads", plan.heads()),
    "tables": ("All tables", "all tables", plan.tables()),
    "figures": ("All figures", "all figures", plan.figures()),
    "papers": ("All papers, with all runs that claims are about", "all papers", plan.papers(plan.needed())),
    "studies": ("All studies: their runs and tables", "all studies", plan.papers(plan.project.studies)),
    "scorecard": ("Every claim: published, ours, verdict", "the scorecard", plan.scorecard()),
    "report": ("The report: all results on one HTML page", "the report", plan.report()),
    **{name: (None, name, plan.papers([name])) for name in plan.project.every},
}
for name, (about, done, made) in targets.items():

    rule:
        name:
            name
        default_target: name == "all"
        input:
            made,
        # Without a message, Snakemake prints the names of all files.
        message:
            f"Made, scale {plan.scale}: {done}"

    workflow.get_rule(name).docstring = about


# Snakemake's own message names no target that exists. It gives the Snakefile no other list of those that were asked for.
if workflow.is_main_process and "--" in sys.argv:
    with exits():
        for name in sys.argv[sys.argv.index("--") + 1 :]:
            if "/" not in name and not workflow.is_rule(name) and not Path(name).exists():
                raise UserError(f"scale {plan.scale} has no target '{name}'{nearest(name, targets)}")


onstart:
    if workflow.local_exec:
        # With a limit on the rate of jobs, Snakemake's scheduler wakes up once a second for each job that has finished.
        workflow.scheduler.job_rate_limiter = None
        warm.attend()
        failures.end_with_the_terminal(workflow.scheduler)
    failures.attend()


onsuccess:
    if workflow.is_main_process:
        print(summary(plan.records()), end="", file=sys.stderr)
        data_version.keep()


onerror:
    if workflow.is_main_process:
        print(summary(plan.records()), end="", file=sys.stderr)
