"""Fetch an official file, with progress on the terminal."""

from recaps.plan import stages
from recaps.plan.job import job

with job(snakemake, show=True):
    stages.fetch_file(snakemake)
