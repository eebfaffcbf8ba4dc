# recaps: `make demo` and `make test` need git, make and Python 3.11 or newer; `make help` lists all targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# The Python that makes the environment, e.g. `make PYTHON=/path/to/python3.12 demo`.
PYTHON ?=
# For `make estimate`: the scale, and a device that was measured; all if empty.
ESTIMATED := $(or $(SCALE),paper)
DEVICE ?=
SCALE ?= desk
# For `make publish`: the papers. Empty: all finished ones.
PAPERS ?=
# For `make publish`: unavailable data sets.
WITHOUT ?=
# For `make publish`: any text, to draw the published record again and copy nothing.
DRAW ?=
# For `make demo`: any text, to print each job instead of the progress.
VERBOSE ?=
# For `make faults`: the number of faults.
N ?= 50
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: help environment demo test test-cluster faults slurm lint format bench estimate publish compare verify rulegraph lock clean-smoke clean

help: ## Show this list
	@echo "make <target>"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-22s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo ".venv/bin/snakemake --profile PROFILE <target>, where PROFILE is profiles/smoke, profiles/local or slurm"
	@awk -F '"' '/^    "[a-z]+": \("/ { printf "  %-22s %s\n", $$2, $$4 }' Snakefile
	@for file in src/recaps/papers/*/paper.yaml; do folder="$${file%/*}"; \
		printf "  %-22s %s\n" "$${folder##*/}" "$$(sed -n 's/^title: */Paper: /p' "$$file" | tr -d '"')"; done

# The environment. It is made again only if the lock file or the list of packages changes.
environment: $(STAMP) ## Make .venv from the lock file

$(STAMP): envs/requirements.lock pyproject.toml
	@python="$$(envs/find-python $(PYTHON))" || exit 1; \
	if [ ! -x $(BIN)/python ]; then \
		echo "Making .venv with $$python"; \
		"$$python" -m venv .venv || { rm -rf .venv; \
			echo "make: $$python cannot make a virtual environment; install its venv module (Debian: apt install python3-venv)" >&2; exit 1; }; \
	fi
	@case "$$(uname -sm) $${PIP_EXTRA_INDEX_URL:-}" in \
		*whl/cpu*) size="0.5 GB" ;; \
		"Linux x86_64"*) size="3 GB, most of it for NVIDIA GPUs (README.md, Start: how to install 0.5 GB without them)" ;; \
		*) size="0.5 GB" ;; \
	esac; \
	echo "Installing the pinned packages into .venv; takes some minutes and downloads about $$size"
	@$(BIN)/python -m pip install --disable-pip-version-check --root-user-action ignore --progress-bar off \
		--requirement envs/requirements.lock \
		| while read -r line; do case "$$line" in \
			Downloading*" MB)"* | "Using cached"*" MB)"*) echo "  $$line" ;; \
			"Installing collected"*) echo "  Unpacking all packages" ;; \
			esac; done
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: environment ## The whole workflow on stand-in data (no network), to results/smoke/report.html (VERBOSE=1: each job)
	@PYTHONPATH=workflow $(BIN)/snakemake --profile profiles/smoke $(if $(VERBOSE),,--logger progress --show-failed-logs) \
		|| { echo "make: 'make demo' continues where this stopped" >&2; exit 1; }
	@echo
	@echo "Done. The data are stand-ins, so the numbers mean nothing. Report: results/smoke/report.html"

test: environment ## Most tests: all but those marked long, cluster or whole; quicker after `make demo`
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 3 --durations 20 -m "not (whole or long or cluster)"

test-cluster: slurm ## The tests on a private Slurm; as root on Debian, this installs its packages
	@$(BIN)/python -m pytest -m "whole or not whole" tests/cluster

faults: slurm ## Stop trainings on a private Slurm at N random points; replaces the table of docs/reliability.md
	@$(BIN)/python tests/cluster/campaign.py --n $(N) --into docs/reliability.md

slurm: environment
	@if ! type sbatch slurmctld slurmd munged > /dev/null 2>&1; then \
		if [ "$$(id -u)" = 0 ] && type apt-get > /dev/null 2>&1; then \
			echo "Installing Debian's slurm-wlm and munge"; \
			export DEBIAN_FRONTEND=noninteractive; \
			apt-get -qq update; \
			apt-get -qq install --yes --no-install-recommends slurm-wlm munge > /dev/null; \
		else \
			echo "make: Slurm or munge is not on the path; install them (as root on Debian: apt-get install slurm-wlm munge)" >&2; \
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
	@$(BIN)/python envs/lock.py
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml

format: environment ## Format code and workflow
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .
	@$(BIN)/snakefmt Snakefile rules

bench: environment ## Time training steps of each model, and Snakemake's start; keep the times for `make estimate`
	@$(BIN)/python -m recaps.bench --save
	@TIMEFORMAT="snakemake --profile slurm -n, scale paper: %R s, %U s of processor time"; \
		time $(BIN)/snakemake --profile slurm -n --quiet all --config scale=paper device=cuda > /dev/null
	@TIMEFORMAT="snakemake --profile profiles/smoke -n: %R s, %U s of processor time"; \
		time $(BIN)/snakemake --profile profiles/smoke -n --quiet all > /dev/null

estimate: environment ## Jobs, storage and hours of training of each paper, by device (make estimate SCALE=paper)
	@$(BIN)/python -m recaps.estimate --scale $(ESTIMATED) $(if $(DEVICE),--device "$(DEVICE)")

publish: environment ## Copy finished runs to results/published/SCALE, draw all (make publish SCALE=desk PAPERS="sparse")
	@$(BIN)/python -m recaps.report.publish --scale $(SCALE) $(if $(PAPERS),--papers $(PAPERS)) $(if $(WITHOUT),--without $(WITHOUT)) $(if $(DRAW),--draw)

compare: environment ## Compare your own results with the published ones (make compare SCALE=desk)
	@$(BIN)/python -m recaps compare results/$(SCALE) results/published/$(SCALE)

verify: environment ## Compare every result with the checksum in its receipt (make verify SCALE=desk)
	@$(BIN)/python -m recaps verify --scale $(SCALE)

rulegraph: environment ## Draw the graph of the rules, docs/rulegraph.svg (needs graphviz)
	@$(BIN)/snakemake --rulegraph dot --config scale=desk 'papers=[sparse, discriminative]' -- report 2>/dev/null \
		| awk '/_of_sparse/ { split($$1, id, "["); drop[id[1]] } /->/ && ($$1 in drop || $$3 in drop) || /_of_sparse/ { next } 1' \
		| sed 's/_of_discriminative//; s/color = "[^"]*"/color = "#57606a"/; s/style="rounded"/style="rounded,filled", fillcolor="#f6f8fa"/' \
		| tred | dot -Tsvg > docs/rulegraph.svg

lock: ## Install what pyproject.toml requires, and write the lock file (after a change there)
	@$(BIN)/python -m pip install --quiet --editable .[workflow,tensorboard,dev]
	@$(BIN)/python envs/lock.py --fix

clean-smoke: ## Remove the results of scale smoke
	@rm -rf results/smoke

clean: clean-smoke ## Remove the results of scale smoke and the environment
	@rm -rf .venv
