"""Fetch an official file, with progress on the terminal."""

from recaps.workflow import stages
from recaps.workflow.job import job

with job(snakemake, show=True):
    stages.fetch_file(snakemake)
