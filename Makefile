# recaps: `make demo` and `make test` need git, make and Python 3.11 or newer; `make help` lists the rest.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# A Python to make the environment with; `make PYTHON=/path/to/python3.12 demo` chooses another.
PYTHON ?=
# For `make estimate`: the scale, if none is named, and the GPU.
ESTIMATED := $(or $(SCALE),paper)
GPU ?= NVIDIA A100
SCALE ?= desk
# For `make publish`: papers; all that are finished if empty.
PAPERS ?=
# For `make publish`: data sets that could not be had.
WITHOUT ?=
# For `make faults`: how many.
N ?= 50
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: help environment demo test test-cluster faults slurm lint format bench estimate publish compare rulegraph lock clean-smoke clean

help: ## Show this list
	@echo "make <target>"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-22s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo ".venv/bin/snakemake --profile profiles/smoke|profiles/local|slurm <target>"
	@awk '/^rule [a-z]+:/ { name = substr($$2, 1, length($$2) - 1) } /^    """.*"""/ && name { gsub(/^ *"""|"""$$/, ""); printf "  %-22s %s\n", name, $$0; name = "" }' Snakefile
	@for file in config/papers/*.yaml; do printf "  %-22s %s\n" "$$(basename "$$file" .yaml)" "$$(sed -n 's/^title: */Paper: /p' "$$file")"; done

# The environment: made once, and again only when the lock file or the list of packages changes.
environment: $(STAMP) ## Make .venv from the lock file

$(STAMP): envs/requirements.lock pyproject.toml
	@python="$$(envs/find-python $(PYTHON))"; \
	if [ ! -x $(BIN)/python ]; then \
		echo "Making .venv with $$python"; \
		"$$python" -m venv .venv || { rm -rf .venv; \
			echo "make: $$python cannot make a virtual environment; install its venv module (Debian: apt install python3-venv)" >&2; exit 1; }; \
	fi
	@echo "Installing the pinned packages into .venv (some minutes)"
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --requirement envs/requirements.lock
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: environment ## The whole workflow on stand-in data (no network), to results/smoke/report.html
	@if [ -t 2 ]; then logger="--logger rich"; fi; $(BIN)/snakemake --profile profiles/smoke $${logger:-}
	@echo
	@echo "Done, on stand-in data: the numbers mean nothing. The report: results/smoke/report.html"

test: environment ## Every test that this machine can run
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2

test-cluster: slurm ## The tests on a Slurm of their own; on Debian, root gets its packages installed
	@$(BIN)/python -m pytest -m "whole or not whole" tests/cluster

faults: slurm ## Strike trainings on that Slurm N times at random points (make faults N=50; the table: docs/reliability.md)
	@$(BIN)/python tests/cluster/campaign.py --n $(N) --into docs/reliability.md

slurm: environment
	@if ! type sbatch slurmctld slurmd munged > /dev/null 2>&1; then \
		if [ "$$(id -u)" = 0 ] && type apt-get > /dev/null 2>&1; then \
			echo "Installing Debian's slurm-wlm and munge"; \
			export DEBIAN_FRONTEND=noninteractive; \
			apt-get -qq update; \
			apt-get -qq install --yes --no-install-recommends slurm-wlm munge > /dev/null; \
		else \
			echo "make: no Slurm and munge on the path; install them (as root on Debian: apt-get install slurm-wlm munge)" >&2; \
			exit 1; \
		fi; \
	fi

lint: environment ## Check style, types, workflow and generated files
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/snakefmt --check Snakefile rules
	@$(BIN)/snakemake --lint
	@$(BIN)/python -m recaps.config.manual
	@$(BIN)/python -m recaps.workflow.pipeline
	@$(BIN)/python envs/lock.py

format: environment ## Rewrite in the project's style
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .
	@$(BIN)/snakefmt Snakefile rules

bench: environment ## Speed of each model: step time, images/s, share of the machine's peak, memory; and Snakemake's start
	@$(BIN)/python -m recaps.bench
	@TIMEFORMAT="snakemake --profile slurm -n, scale paper: %R s, %U s of processor time"; \
		time $(BIN)/snakemake --profile slurm -n --config scale=paper device=cuda > /dev/null 2>&1
	@TIMEFORMAT="snakemake --profile profiles/smoke -n: %R s, %U s of processor time"; \
		time $(BIN)/snakemake --profile profiles/smoke -n > /dev/null 2>&1

estimate: environment ## Jobs, GPU-hours and storage of each paper (make estimate GPU="NVIDIA H200" SCALE=paper)
	@$(BIN)/python -m recaps.estimate --gpu "$(GPU)" --scale $(ESTIMATED)

publish: environment ## Keep finished papers in git: results/published/SCALE (make publish SCALE=desk PAPERS="sparse")
	@$(BIN)/python -m recaps.report.publish --scale $(SCALE) $(if $(PAPERS),--papers $(PAPERS)) $(if $(WITHOUT),--without $(WITHOUT))

compare: environment ## Set your own run beside the published one (make compare SCALE=desk)
	@$(BIN)/python -m recaps.report.compare --scale $(SCALE)

rulegraph: environment ## Draw the rules and what they need: docs/rulegraph.svg (needs graphviz)
	@$(BIN)/snakemake --rulegraph dot --config scale=desk 2>/dev/null \
		| sed 's/color = "[^"]*"/color = "#57606a"/; s/style="rounded"/style="rounded,filled", fillcolor="#f6f8fa"/' \
		| dot -Tsvg > docs/rulegraph.svg

lock: environment ## Pin what is installed now (after a change in pyproject.toml and pip install -e .[dev])
	@$(BIN)/python envs/lock.py --fix

clean-smoke: ## Remove the results of scale smoke
	@rm -rf results/smoke

clean: clean-smoke ## Remove them, and the environment
	@rm -rf .venv
