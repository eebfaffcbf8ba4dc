"""Results that are stale, damaged or of unknown origin are named and made again, by `recaps run` as by Snakemake."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from clones import SMOKE, Clone, Done, copy

from recaps.io import digest_of

#: A variant that trains in a second; it has latents, probes and a fitted head, and another run judges its samples.
RUN = "results/smoke/runs/experts/mnist-vae/seed-0"
NAME = "experts/mnist-vae"


@pytest.fixture(scope="module")
def made(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A copy with one finished run, made without Snakemake."""
    clone = copy(root, tmp_path_factory.mktemp("made"))
    done = run(clone)
    assert done.status == 0, done.output
    return clone


@pytest.fixture
def again(made: Clone, tmp_path: Path) -> Iterator[Clone]:
    """The same copy; its results and settings are as they were after each test."""
    kept = tmp_path / "kept"
    for name in ("results", "config"):
        shutil.copytree(made.folder / name, kept / name, copy_function=shutil.copy2)
    yield made
    for name in ("results", "config", "own.npz", ".snakemake"):
        path = made.folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        if (kept / name).exists():
            shutil.copytree(kept / name, path, copy_function=shutil.copy2)


def run(clone: Clone, *arguments: str) -> Done:
    """`recaps run` of one variant at scale smoke."""
    return clone.python("recaps", "run", "--scale", "smoke", "--variants", NAME, "--threads", "1", *arguments)


def made_lines(done: Done) -> list[str]:
    """What a run made, and why."""
    return [line.removeprefix("recaps: making ") for line in done.output.splitlines() if "recaps: making" in line]


def settle(clone: Clone, **settings: Any) -> None:
    """Change config.yaml."""
    file = clone.folder / "config/config.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **settings}))


def override(**variant: Any) -> dict[str, Any]:
    return {"experts": {"variants": {"mnist-vae": variant}}}


def is_consistent(clone: Clone) -> bool:
    """Whether latents, heads and record were made from the files that are there."""
    folder, scale = clone.folder / RUN, clone.folder / "results/smoke"
    for receipt in (folder / ".made").glob("*.json"):
        data: Mapping[str, str] = json.loads(receipt.read_text())["identity"]["data"]
        for name, digest in data.items():
            if name.startswith("runs/") and not name.endswith("record.json") and digest_of(scale / name) != digest:
                return False
    return True


def flip(file: Path) -> None:
    """Change 40 bits in the middle of a file, and keep its time stamp."""
    state, content = file.stat(), bytearray(file.read_bytes())
    for place in range(len(content) // 2, len(content) // 2 + 40):
        content[place] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))


def test_a_finished_run_is_left_alone(again: Clone) -> None:
    done = run(again)
    assert (done.status, made_lines(done)) == (0, [])
    assert again.snakemake(*SMOKE, "-n", "--", f"{RUN}/numbers.csv").jobs() == {}, "nor does Snakemake make it again"


def test_two_runs_with_other_settings_do_not_mix(again: Clone) -> None:
    """A1: one of them is refused while the other makes a part; what is there afterwards belongs together."""
    shutil.rmtree(again.folder / RUN)
    folders = [f"config-{steps}" for steps in (40, 60)]
    for steps, name in zip((40, 60), folders, strict=True):
        folder = again.folder / name
        shutil.copytree(again.folder / "config", folder, dirs_exist_ok=True)
        values = yaml.safe_load((folder / "config.yaml").read_text())
        values["overrides"] = override(training={"steps": steps})
        (folder / "config.yaml").write_text(yaml.safe_dump(values))
    with ThreadPoolExecutor() as threads:
        ended = list(threads.map(lambda name: run(again, "--config", name), folders))
    assert {done.status for done in ended} <= {0, 75}, ended
    assert 0 in {done.status for done in ended}
    for done in ended:
        assert "Traceback" not in done.output
        assert done.status == 0 or "trains this run" in done.output
    for name in folders:
        done = again.python("recaps", "run", "--scale", "smoke", "--variants", NAME, "--config", name)
        assert done.status == 0, done.output
        assert is_consistent(again)
    assert json.loads((again.folder / RUN / "record.json").read_text())["steps"] == 60


def test_a_setting_of_a_head_fits_it_again(again: Clone) -> None:
    """A2"""
    settle(again, overrides={"experts": {"heads": {"linear": {"C": 0.5}}}})
    lines = made_lines(run(again))
    made = [line.partition(" of ")[0] for line in lines]
    assert made == ["heads", "record", "record"], "of the run, and of its judge, whose record knows all heads"
    assert "linear" in lines[0]
    assert "linear.mnist.head.C: 100.0 -> 0.5" in lines[0]
    assert made_lines(run(again)) == []


def test_a_limit_of_latents_reads_the_model_again(again: Clone) -> None:
    """A2"""
    settle(again, overrides=override(latents={"mnist/test": 200}))
    lines = made_lines(run(again))
    assert lines[0].startswith(f"latents and probes of {NAME}, seed 0 again: latents.mnist/test: ")
    assert not any(line.startswith("training") for line in lines)


def test_other_data_train_again(again: Clone) -> None:
    """A2"""
    settle(again, datasets={"mnist": "fashion-mnist"})
    done = run(again)
    assert done.status == 0, done.output
    line = f"training of {NAME}, seed 0 again: mnist/train is no longer an input; fashion-mnist/train is now an input"
    assert line in made_lines(done)


def test_the_content_of_own_data_counts(again: Clone) -> None:
    """A2"""
    file = again.folder / "own.npz"
    random = np.random.default_rng(0)
    images, labels = random.integers(0, 255, (400, 28, 28), np.uint8), np.arange(400) % 10
    np.savez(file, images=images, labels=labels)
    settle(again, datasets={"mnist": "mine", "mine": {"path": "own.npz"}})
    assert run(again).status == 0
    assert made_lines(run(again)) == []
    np.savez(file, images=255 - images, labels=labels)
    done = run(again)
    assert done.status == 0, done.output
    stages = [line.partition(" of ")[0].partition(" again")[0] for line in made_lines(done)]
    assert {"mnist-mine/train", "mnist-mine/test", "training", "latents and probes", "heads", "record"} <= set(stages)


@pytest.mark.parametrize("file", ["latents.npz", "probes.npz", "history.csv", "arrays.npz"])
def test_what_is_deleted_is_made_again(again: Clone, file: str) -> None:
    """A2: from the last checkpoint, where a training left it, so with the same times."""
    before = (again.folder / RUN / file).read_bytes()
    (again.folder / RUN / file).unlink()
    assert run(again).status == 0
    assert (again.folder / RUN / file).read_bytes() == before


def test_snakemakes_memory_decides_nothing(again: Clone) -> None:
    """A4: the run was made without Snakemake, which has no memory of it."""
    target = f"{RUN}/model.safetensors"
    values = "overrides={experts: {variants: {mnist-vae: {training: {learning_rate: 0.002}}}}}"
    before = {file: file.stat().st_mtime_ns for file in (again.folder / "results").rglob("*") if file.is_file()}
    done = again.snakemake(*SMOKE, "-n", "--config", "scale=smoke", values, "--", target)
    assert done.jobs() == {"train_variant": 1, "total": 1}, done.output
    assert f"recaps: training of {NAME}, seed 0 is made again: training.learning_rate: 0.001 -> 0.002" in done.output
    assert {file: file.stat().st_mtime_ns for file in (again.folder / "results").rglob("*") if file.is_file()} == before
    done = again.snakemake(*SMOKE, "--config", "scale=smoke", values, "--", f"{RUN}/numbers.csv")
    assert done.status == 0, done.output
    assert set(done.jobs()) == {"train_variant", "read_model", "evaluate_heads", "record_run", "total"}
    assert made_lines(run(again)), "the settings of config.yaml are others"


def test_results_of_unknown_origin_are_made_again(again: Clone) -> None:
    shutil.rmtree(again.folder / RUN / ".made")
    done = again.snakemake(*SMOKE, "-n", "--", f"{RUN}/model.safetensors")
    assert f"recaps: training of {NAME}, seed 0 is made again: nothing says what made it" in done.output


def test_flipped_bits_are_found(again: Clone) -> None:
    """A6: whether a job reads the file, or `verify` does."""
    model, images = again.folder / RUN / "model.safetensors", "results/smoke/datasets/mnist/train/images.npy"
    flip(model)
    (again.folder / RUN / "latents.npz").unlink()
    done = run(again)
    assert done.status == 1
    assert f"{RUN}/model.safetensors: changed since it was made; `rm` it" in done.output
    assert "Traceback" not in done.output
    flip(again.folder / images)
    done = again.python("recaps", "verify", "--scale", "smoke")
    assert done.status == 1
    assert done.output.count("changed since it was made") == 2
    assert f"{images}: changed since it was made" in done.output


def test_why(again: Clone) -> None:
    done = again.python("recaps", "why", NAME, "--scale", "smoke")
    assert f"training of {NAME}, seed 0: as planned" in done.output
    settle(again, overrides=override(training={"learning_rate": 0.002, "batch_size": 16}, model={"latent_dim": 3}))
    done = again.python("recaps", "why", RUN, "--scale", "smoke")
    line = next(line for line in done.output.splitlines() if line.startswith("training of"))
    for change in ("learning_rate: 0.001 -> 0.002", "batch_size: ", "model.latent_dim: "):
        assert change in line
    with again.edited("src/recaps/nn/precision.py", "loss.backward()", "loss.backward(); loss.detach()"):
        done = again.python("recaps", "why", NAME, "--scale", "smoke")
        assert "recaps.nn.precision changed (" in done.output
    done = again.python("recaps", "why", "experts/mnist-vea", "--scale", "smoke")
    assert (done.status, done.output) == (
        1,
        "recaps: why: the plan has no run 'experts/mnist-vea' (did you mean 'experts/mnist-vae'?)\n",
    )


def test_checkpoints_of_other_settings_are_named_and_removed(again: Clone) -> None:
    """A8"""
    folder = again.folder / "results/smoke/checkpoints" / NAME / "seed-0"
    (own,) = (file.parent for file in folder.glob("*/identity.json"))
    settle(again, overrides=override(training={"learning_rate": 0.002}))
    assert run(again).status == 0
    assert len([*folder.glob("*/identity.json")]) == 2
    done = again.python("recaps", "why", "--scale", "smoke")
    assert f"  {own.relative_to(again.folder)}\n" in done.output
    assert again.python("recaps", "clean", "--scale", "smoke").status == 0
    assert not own.exists()
    assert len([*folder.glob("*/identity.json")]) == 1


def test_a_new_option_makes_no_run_new(again: Clone) -> None:
    """Its default is what the run was trained with."""
    with again.edited(
        "src/recaps/config/training.py", "    lr_floor", '    novelty: float = 0.0\n    """New."""\n    lr_floor'
    ):
        assert made_lines(run(again)) == []
        assert again.snakemake(*SMOKE, "-n", "--", f"{RUN}/numbers.csv").jobs() == {}


@pytest.mark.long
def test_a_refactoring_is_accepted_after_a_proof(again: Clone) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=Someone", "-c", "user.email=someone@example.org"]
        subprocess.run(["git", *identity, *arguments], cwd=again.folder, check=True, capture_output=True)

    (again.folder / ".gitignore").write_text("results\n__pycache__\n.snakemake\n")
    git("init")
    git("add", ".")
    git("commit", "-m", "The code that trains")
    shutil.rmtree(again.folder / RUN)
    shutil.rmtree(again.folder / "results/smoke/checkpoints")
    try:
        assert run(again).status == 0
        file, old = "src/recaps/models/schedule.py", "decayed = training.learning_rate * training.lr_decay"
        with again.edited(file, old, "decayed = training.learning_rate * 1.0 * training.lr_decay"):
            done = again.python("recaps", "accept", "--scale", "smoke")
            assert f"{NAME}: the same bits (steps, latents" in done.output
            assert "recaps.models.schedule" in done.output
            done = again.python("recaps", "why", NAME, "--scale", "smoke")
            assert f"training of {NAME}, seed 0: as planned" in done.output
            assert "recaps.models.schedule; the same bits with commits" in done.output
            assert "proofs" in json.loads((again.folder / RUN / "record.json").read_text())
            assert not any(f"training of {NAME}" in line for line in made_lines(run(again)))
            assert again.python("recaps", "clean", "--scale", "smoke").output.startswith("no checkpoints to remove")
        with again.edited(file, old, "decayed = training.learning_rate * 1.1 * training.lr_decay"):
            done = again.python("recaps", "accept", "--scale", "smoke")
            assert f"{NAME}: other numbers in steps" in done.output
            done = again.python("recaps", "why", NAME, "--scale", "smoke")
            assert f"training of {NAME}, seed 0: recaps.models.schedule changed" in done.output
        with again.edited("src/recaps/evaluation/latents.py", 'np.asarray(arrays.record["stand_in"])', "np.ones(1)"):
            done = again.python("recaps", "accept", "--scale", "smoke")
            assert f"of {NAME}, seed 0: the first steps do not run recaps.evaluation.latents" in done.output
            assert not re.search("the same bits.* accepted with .*recaps.evaluation.latents", done.output)
        receipt = again.folder / RUN / ".made/config.json.json"
        made = json.loads(receipt.read_text())
        made["identity"]["modules"]["recaps.models.schedule"] = "0" * 16
        receipt.write_text(json.dumps(made | {"proofs": []}))
        done = again.python("recaps", "accept", "--scale", "smoke")
        other = "made with another recaps.models.schedule than that of the commit in its record; it will be made again"
        assert f"training of {NAME}, seed 0: {other}" in done.output
    finally:
        shutil.rmtree(again.folder / ".git")
        (again.folder / ".gitignore").unlink()
