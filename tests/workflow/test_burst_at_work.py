"""A burst with two trainings side by side: sent, killed, cut short, resumed elsewhere, brought home and published."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest
from clones import Clone, Done, copy
from places import CONFIG

from recaps import io
from recaps.config.load import load
from recaps.report import publish
from recaps.training.lease import lives

#: One run to publish, and one that takes long enough to be interrupted.
SETTINGS = """
scale: smoke
only: [sparse/dense-28, experts/mnist-judge]
checkpoint_seconds: 0.2
overrides: {experts: {variants: {mnist-judge: {training: {steps: 2500}}}}}
"""
DENSE, JUDGE = "runs/sparse/dense-28/seed-0", "experts/mnist-judge/seed-0"


def git(home: Clone, *arguments: str) -> str:
    command = ["git", "-c", "user.name=test", "-c", "user.email=test@example.org", *arguments]
    return subprocess.run(command, cwd=home.folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def home(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A git checkout with these settings."""
    home = copy(root, tmp_path_factory.mktemp("home"))
    (home.folder / "config/config.yaml").write_text(SETTINGS)
    (home.folder / ".gitignore").write_text("__pycache__/\n/results/*\n!/results/published/\n")
    git(home, "init", "--quiet")
    git(home, "add", ".")
    git(home, "commit", "--quiet", "--message", "A commit")
    return home


def burst(place: Clone, *options: object) -> Done:
    return place.python("recaps", "burst", "--jobs", "2", *map(str, options))


def sent(home: Clone, folder: Path) -> Clone:
    """The other machine: a folder with what was shipped."""
    done = burst(home, "--ship", folder.with_suffix(".tar"))
    assert done.status == 0, done.output
    with tarfile.open(folder.with_suffix(".tar")) as archive:
        archive.extractall(folder, filter="data")
    return Clone(folder)


def wait_for(condition: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.long
def test_the_whole_way(home: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = sent(home, tmp_path / "first")
    smoke = first.folder / "results/smoke"
    training = smoke / "checkpoints" / JUDGE

    command = [sys.executable, "-m", "recaps", "burst", "--jobs", "2", "--minutes", "60"]
    with subprocess.Popen(command, cwd=first.folder, env=first.environment(), stderr=subprocess.DEVNULL) as killed:
        wait_for(lambda: any(training.glob("*/checkpoint.pt")))
        killed.kill()
    wait_for(lambda: not any(map(lives, map(io.read_json, smoke.rglob("lease.json")))))
    assert not (smoke / "runs" / JUDGE / "model.safetensors").exists()

    short = burst(first, "--minutes", 0.4, "--grace", 18)
    assert short.status == 75, short.output
    assert f"checkpoints/{JUDGE}/" in "".join(packed(first))

    second = sent(home, tmp_path / "second")
    whole = burst(second, "--minutes", 60, "--resume", first.folder / "burst")
    assert whole.status == 0, whole.output
    record = json.loads((second.folder / "results/smoke/runs" / JUDGE / "record.json").read_text())
    assert record["interruptions"] >= 1
    assert f"runs/{JUDGE}/record.json" in packed(second)
    assert not [name for name in packed(second) if name.endswith((".safetensors", "checkpoint.pt"))]

    collected = burst(home, "--collect", second.folder / "burst")
    assert "2 finished runs and checkpoints of 0 others" in collected.output
    (published,) = publish_at_home(home, monkeypatch)["papers"].items()
    assert published[0] == "sparse"
    assert published[1]["commits"] == [git(home, "rev-parse", "HEAD")]
    assert published[1]["dirty"] is False

    assert (home.folder / "results/published/smoke" / DENSE / "record.json").exists()
    third = sent(home, tmp_path / "third")
    finished = json.loads((third.folder / "shipped.json").read_text())["finished"]["smoke"]
    assert set(finished) == {DENSE, f"runs/{JUDGE}"}
    assert not (third.folder / "results").exists()
    idle = burst(third, "--minutes", 60)
    assert idle.status == 0
    assert "made" not in idle.output


def packed(place: Clone) -> list[str]:
    """The names of the files that a burst has packed."""
    pieces = sorted((place.folder / "burst").glob("burst.tar.*"))
    with tarfile.open(fileobj=BytesIO(b"".join(piece.read_bytes() for piece in pieces))) as archive:
        return archive.getnames()


def publish_at_home(home: Clone, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, dict[str, object]]]:
    """Publish `sparse` as `make publish` does, but with stand-in data."""
    read = publish.head_results
    monkeypatch.setattr(publish, "stand_in", lambda records: False)
    monkeypatch.setattr(
        publish, "head_results", lambda run: [(*key, {**result, "stand_in": False}) for *key, result in read(run)]
    )
    others = [
        f"sparse/{name}" for name in load({"scale": "smoke"}, CONFIG).papers["sparse"].variants if name != "dense-28"
    ]
    results = home.folder / "results"
    return publish.publish(results / "smoke", results / "published/smoke", CONFIG, papers=["sparse"], without=others)


def test_only_commits_are_sent(home: Clone, tmp_path: Path) -> None:
    with home.edited("config/config.yaml", "scale: smoke", "scale: smoke "):
        done = burst(home, "--ship", tmp_path / "file.tar")
    assert done.status == 1
    assert "commit or stash your changes first" in done.output
    assert not any(tmp_path.iterdir())
