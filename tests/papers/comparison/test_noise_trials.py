"""Trials that tell what it is in noisy images that models fail on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from recaps import arrays, io
from recaps.config.training import Training
from recaps.papers.comparison import noise_trials
from recaps.papers.comparison.noise_trials import NEAR, TRIALS, expected, near_digit, noisy

pytestmark = pytest.mark.unit


class ByBrightness:
    """Class 0 if an image is dark on average, else class 1."""

    def latents(self, images: Tensor) -> dict[str, Tensor]:
        mean = images.mean((1, 2, 3))
        return {"scores": torch.stack((torch.full_like(mean, 0.05), mean), 1)}


def dots(n: int = 6, side: int = 24) -> Tensor:
    """Images with a white pixel at their centre."""
    images = torch.zeros(n, 1, side, side)
    images[:, :, side // 2, side // 2] = 1
    return images


def test_the_mean_of_the_noise_is_that_of_many_draws() -> None:
    images = torch.linspace(0, 1, 11).reshape(1, 1, 1, 11)
    draws = torch.randn(200_000, 1, 1, 11, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(expected(images), noisy(images, draws).mean(0, keepdim=True), atol=2e-3, rtol=0)
    assert expected(images)[0, 0, 0, 0] == pytest.approx(0.2 / (2 * np.pi) ** 0.5, abs=1e-4)


def test_near_is_a_square_around_each_pixel() -> None:
    near = near_digit(dots(1))[0, 0]
    expected = torch.zeros(24, 24, dtype=torch.bool)
    expected[12 - NEAR : 13 + NEAR, 12 - NEAR : 13 + NEAR] = True
    assert torch.equal(near, expected)


def test_the_two_parts_make_the_whole() -> None:
    images, noise = dots(), torch.randn(6, 1, 24, 24, generator=torch.Generator().manual_seed(0))
    near, elsewhere, whole = (
        TRIALS[name](images, noise) for name in ("near the digit alone", "elsewhere alone", "as in the test")
    )
    torch.testing.assert_close(near + elsewhere - images, whole)
    assert torch.equal(TRIALS["none"](images, noise), images)
    assert TRIALS["not clipped"](images, noise).min() < 0


def test_a_model_that_sees_brightness_fails_on_the_mean_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    images = (255 * dots()).to(torch.uint8).numpy()
    record = {"classes": 10, "stand_in": False, "name": "made"}
    arrays.save(arrays.Arrays(images, np.zeros(6, np.int64), {}, record), tmp_path / "split")
    run, asked = tmp_path / "seed-3", []
    settings = Training(snapshots={"equal-images": 500}).model_dump(mode="json")
    io.write_json(run / "config.json", {"variant": "made", "training": settings})

    def load_model(run: Path, device: torch.device, step: int | None) -> tuple[Any, dict[str, Any]]:
        asked.append(step)
        return ByBrightness(), {"variant": "made"}

    monkeypatch.setattr(noise_trials, "load_model", load_model)
    command = [str(run), "--data", str(tmp_path / "split"), "--out", str(tmp_path / "noise.csv"), "--images", "4"]
    assert noise_trials.main(command) == 0
    assert asked == [500]
    table = pd.read_csv(tmp_path / "noise.csv").set_index("noise")
    assert list(table.index) == list(TRIALS)
    assert set(table["n"]) == {4}
    assert set(table["seed"]) == {3}
    accuracies = table["accuracy %"]
    assert accuracies["none"] == accuracies["not clipped"] == accuracies["0.05 instead of 0.2"] == 100
    assert accuracies["as in the test"] == accuracies["its mean alone"] == 0
    assert noise_trials.main([*command[:2], str(tmp_path / "none"), *command[3:]]) == 1
    assert "no such file" in capsys.readouterr().err
