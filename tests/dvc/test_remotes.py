"""`dvc pull` from a folder and from S3; experiments."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from clones import SMOKE
from repository import Repository

MODEL = "results/smoke/runs/sparse/dense-28/seed-0/model.safetensors"
RAW = [
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
]
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def pushed(made: Repository) -> Repository:
    made.dvc("push", "--quiet")
    return made


def test_a_clone_has_nothing_to_do(pushed: Repository, tmp_path: Path) -> None:
    clone = pushed.clone(tmp_path / "clone")
    clone.dvc("pull", "--quiet")
    assert not (clone.folder / ".snakemake").exists(), "the receipts alone tell what made the results"
    assert clone.changed() == set()
    assert clone.planned() == set()
    assert clone.repro()[0] == []
    assert "Nothing to be done" in clone.run("snakemake", *SMOKE).output
    assert clone.changed() == set(), "a start that finds other times changes no receipt"


def test_a_second_machine_redraws_without_training(pushed: Repository, tmp_path: Path) -> None:
    clone = pushed.clone(tmp_path / "clone")
    clone.dvc("pull", "--quiet", "dvc.yaml")
    drawn = sorted((clone.folder / "results/smoke/papers").rglob("figure-*.png"))
    before = {file: file.read_bytes() for file in drawn}
    assert len(before) >= 8
    for file in drawn:
        file.unlink()
    done = clone.snakemake(*SMOKE, "figures")
    assert done.status == 0, done.output
    rules = re.findall(r"\(Rule: (\w+)\)", done.output)
    assert sorted(rules) == ["draw_figures_of_experts", "draw_figures_of_sparse", "figures"]
    assert {file: file.read_bytes() for file in drawn} == before
    assert not (clone.folder / "data").exists(), "nor were the data needed"


def test_one_data_set_alone(pushed: Repository, tmp_path: Path) -> None:
    clone = pushed.clone(tmp_path / "clone")
    clone.dvc("pull", "--quiet", "data/mnist")
    assert sorted(file.name for file in (clone.folder / "data/mnist").iterdir()) == RAW
    assert not (clone.folder / "results").exists()
    for name in RAW:
        assert (clone.folder / "data/mnist" / name).read_bytes() == (pushed.folder / "data/mnist" / name).read_bytes()


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    """Start an S3 server with a bucket `recaps`; return its address."""
    import boto3

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    with (tmp_path / "server.log").open("wb") as log:
        server = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(port)], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 300
        while socket.socket().connect_ex(("127.0.0.1", port)):
            if server.poll() is not None or time.monotonic() > deadline:
                pytest.fail((tmp_path / "server.log").read_text())
            time.sleep(0.1)
        names = {"aws_access_key_id": "tests", "aws_secret_access_key": "tests", "region_name": "us-east-1"}
        boto3.client("s3", endpoint_url=address, **names).create_bucket(Bucket="recaps")
        yield address
    finally:
        server.terminate()
        server.wait()


def test_an_s3_remote(pushed: Repository, endpoint: str, tmp_path: Path) -> None:
    source, target = pushed.clone(tmp_path / "source"), pushed.clone(tmp_path / "target")
    source.dvc("pull", "--quiet")
    for repository in (source, target):
        repository.dvc("remote", "add", "--local", "--default", "s3", "s3://recaps/store")
        repository.dvc("remote", "modify", "--local", "s3", "endpointurl", endpoint)
    source.dvc("push", "--quiet", environment=CREDENTIALS)
    target.dvc("pull", "--quiet", environment=CREDENTIALS)
    assert (target.folder / MODEL).read_bytes() == (pushed.folder / MODEL).read_bytes()
    assert target.changed() == set()
    assert target.planned() == set()


@pytest.mark.long
def test_an_experiment(pushed: Repository, tmp_path: Path) -> None:
    """It runs in its own folder, and trains only what depends on the setting."""
    clone = pushed.clone(tmp_path / "clone")
    clone.git("config", "user.name", "tests")
    clone.git("config", "user.email", "tests@localhost")
    clone.dvc("pull", "--quiet")
    setting = "overrides.sparse.variants.dense-28.training.learning_rate"
    output = clone.dvc("exp", "run", "--temp", "--name", "faster", "--set-param", f"config/config.yaml:+{setting}=0.05")
    jobs = re.findall(r"\(Rule: (\w+)\)", output)
    assert jobs.count("train_variant") == 1
    assert clone.git("status", "--porcelain") == "", "the workspace is as it was"
    shown = json.loads(clone.dvc("exp", "show", "--json"))
    experiments = {row["name"]: row["data"] for row in _rows(shown)}
    params = experiments["faster"]["params"]["config/config.yaml"]["data"]
    assert params["overrides"]["sparse"]["variants"]["dense-28"]["training"]["learning_rate"] == 0.05
    values = {
        name: data["metrics"]["results/smoke/scorecard.json"]["data"] for name, data in experiments.items() if data
    }
    assert values["faster"].keys() == values["workspace"].keys()
    assert values["faster"] != values["workspace"]
    assert "faster" in clone.dvc("exp", "list")


def _rows(shown: list[dict]) -> Iterator[dict]:
    """Yield the workspace, commits and experiments from the output of `dvc exp show --json`."""
    for entry in shown:
        yield {"name": entry["name"] or entry["rev"], "data": entry.get("data")}
        for experiment in entry.get("experiments") or ():
            yield {"name": experiment["name"], "data": experiment["revs"][0]["data"]}
