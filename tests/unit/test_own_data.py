"""The user's own data in the configuration, in the plan, and as prepared sets."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from recaps.arrays import read
from recaps.config.load import Project, load
from recaps.datasets import own, preparation
from recaps.errors import UserError
from recaps.plan.plan import Plan
from recaps.report import scorecard

pytestmark = pytest.mark.unit

K = 3
Make = Callable[..., Plan]


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """30 grey images of 28x28 in three classes."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (30, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "mine.npz", images=images, labels=np.arange(30) % K)
    return tmp_path / "mine.npz"


@pytest.fixture
def make(root: Path, mine: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.chdir(root)

    def plan(replaced: dict[str, str] | None = None, scale: str = "smoke", **settings: Any) -> Plan:
        datasets = {"mine": {"path": str(mine), **settings}} | ({"mnist": "mine"} if replaced is None else replaced)
        return Plan(load({"scale": scale, "datasets": datasets}, Path("config")))

    return plan


@pytest.mark.parametrize("scale", ["smoke", "desk", "paper"])
@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("mnist", "mnist-mine"),
        ("mnist-40-shifted", "mnist-40-shifted-mine"),
        ("affnist", "affnist-generated-mine"),
        ("fashion-mnist", "fashion-mnist"),
        ("smallnorb-48", "smallnorb-48"),
    ],
)
def test_what_is_derived_from_a_replaced_set_follows_it(make: Make, scale: str, name: str, found: str) -> None:
    project = make(scale=scale).project
    assert project.dataset(name) == found
    own = found.endswith("-mine")
    assert project.origin(found) == (found.removesuffix("-mine"), "mine" if own else None)
    assert project.stand_in(f"{name}/test") == (scale == "smoke" and not own)


def test_a_paper_knows_the_own_data_that_it_uses(make: Make) -> None:
    project = make({"fashion-mnist": "mine"}).project
    used = {paper for paper in project.papers if project.own_data(paper)}
    assert used == {"experts", "discriminative"}
    assert Project.model_validate(project.model_dump(mode="json")) == project, "as parameters of rules"


def test_models_get_a_capsule_or_an_output_for_each_class(make: Make) -> None:
    papers = make().project.papers
    sparse = papers["sparse"].variants
    assert sparse["convnet"].model.model_dump()["classes"] == K
    assert sparse["supcaps"].model.model_dump()["capsules"] == K
    assert sparse["dense"].model.model_dump()["capsules"] == 16, "these are no classes"
    assert papers["discriminative"].variants["fashion-dr"].model.model_dump()["capsules"] == 10, "official data"


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"smallnorb": "mine"}, "config: datasets: your own data cannot replace 'smallnorb'; they can replace mnist, "),
        ({"mnist-40": "mine"}, "config: datasets: your own data cannot replace 'mnist-40'; they can replace mnist, "),
        ({"mnist": "mien"}, "config: datasets: no data set 'mien'"),
        ({}, "config: datasets.mine: replaces no set; name the set, e.g. {mnist: mine}"),
        ({"40": {"path": "x.npz"}}, "config: datasets.40: x.npz: no such file or folder"),
        ({"mine": {"pth": "x.npz"}}, "config: unknown key 'datasets.mine.pth' (did you mean 'path'?)"),
        ({"mine": {"path": "x.npz", "size": 2}}, "config: datasets.mine.size: Input should be greater than or equal"),
        ({"mine": 3}, "config: datasets.mine: Input should be a mapping, not 3"),
        ({"mine": "A b"}, "config: datasets.mine: 'A b' is not a name"),
    ],
)
def test_mistakes_are_told_before_anything_runs(make: Make, replaced: Any, message: str) -> None:
    with pytest.raises(UserError) as raised:
        make(replaced)
    assert str(raised.value).startswith(message)


def test_a_name_that_could_be_another_sets(make: Make, mine: Path) -> None:
    with pytest.raises(UserError, match="'40' could be confused with 'mnist-40'; give another name"):
        make({"40": {"path": str(mine)}})


def test_own_files_are_no_official_files_but_changes_of_them_count(make: Make, mine: Path) -> None:
    names = SimpleNamespace(dataset="mnist-40-mine", split="train")
    plan = make(scale="desk")
    assert plan.raw_files(names) == []
    assert plan.raw_files(SimpleNamespace(dataset="fashion-mnist", split="train")) != []
    before = plan.preparation(names)
    assert before["like"] == "mnist-40"
    assert make(scale="desk").preparation(names) == before
    os.utime(mine, ns=(1, 1))
    assert make(scale="desk").preparation(names) != before


def test_prepared_sets_are_made_of_own_images(make: Make, mine: Path, tmp_path: Path) -> None:
    given = np.load(mine)
    rows = {}
    for split in ("train", "test"):
        source = make().preparation(SimpleNamespace(dataset="mnist-40-mine", split=split))
        folder = preparation.prepare(
            source["like"],
            split,
            tmp_path,
            tmp_path / "out",
            stand_in=source["stand_in"],
            options=source["options"],
            own=source["own"],
        )
        assert folder == tmp_path / "out" / "mnist-40-mine" / split
        rows[split] = read(folder)
    images = np.concatenate([each.images[:, 0, 6:-6, 6:-6] for each in rows.values()])
    assert {each.tobytes() for each in images} == {each.tobytes() for each in given["images"]}
    record = rows["test"].record
    assert record["name"] == "mnist-40-mine"
    assert record["own"] == "mine"
    assert record["title"] == "mine, made like MNIST on 40x40"
    assert record["classes"] == K
    assert record["official"] is record["stand_in"] is False
    assert record["sources"][0]["path"] == str(mine)
    assert len(record["sources"][0]["sha256"]) == 64


@pytest.mark.parametrize(
    ("replaced", "settings", "message"),
    [("cifar10", {"size": 32}, r"1 channels, but cifar10, which it replaces, has 3; give images with three channels")],
)
def test_own_images_have_the_shape_of_the_set_that_they_replace(
    make: Make, mine: Path, tmp_path: Path, replaced: str, settings: dict[str, Any], message: str
) -> None:
    source = make({replaced: "mine"}, **settings).preparation(SimpleNamespace(dataset=f"{replaced}-mine", split="test"))
    with pytest.raises(UserError, match=f"{mine}: {message}"):
        preparation.prepare(replaced, "test", tmp_path, tmp_path / "out", stand_in=False, own=source["own"])


def test_claims_about_other_data_are_not_judged(make: Make, tmp_path: Path) -> None:
    plan = make()
    assert plan.judging(None)["own"]["sparse"] == ["mine in place of mnist"]
    claims = [Path(file) for file in plan.written("claims.yaml")]
    card = scorecard.make(claims, [], [], tmp_path, scale="smoke", papers=["sparse"], own={"sparse": ["mine"]})
    assert card.empty
    assert "## sparse\n\nRun on your own data (mine)." in (tmp_path / "scorecard.md").read_text()
    assert set((scorecard.load(tmp_path / "scorecard.csv"))["id"]) == set()


@pytest.mark.parametrize(("scale", "usual"), [("smoke", 360), ("desk", 10_000)])
def test_protocols_shrink_with_few_own_images(make: Make, scale: str, usual: int) -> None:
    """Parts of a protocol keep their shares of the set, so that each is there and they do not overlap."""
    names, tested = SimpleNamespace(paper="sparse", variant="sparsecaps"), 6
    elsewhere = {"fashion-mnist": "mine"}  # a set that `sparse` does not use
    theirs, mine = (make(replaced, scale=scale).fitted_heads(names)["svm"] for replaced in (elsewhere, None))
    versions = make(scale=scale).preparation(SimpleNamespace(dataset="affnist-generated-mine", split="test"))
    there = tested * versions["options"].get("versions", 32)
    for protocol, settings in mine.items():
        for part, other in zip(settings["protocol"].values(), theirs[protocol]["protocol"].values(), strict=True):
            if isinstance(part, dict) and part["set"].startswith("affnist"):
                assert part["start"] == other["start"] * tested // usual
                assert part["count"] == (other["count"] and other["count"] * tested // usual)
                assert part["start"] + (part["count"] or 1) <= there
    position = mine["affnist-a-position"]["protocol"]
    assert 0 < position["fit"]["count"] == position["test"]["start"]


def test_only_pictures_count(tmp_path: Path) -> None:
    """What a file manager leaves in a folder is no reason to prepare the data again."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").touch()
    before = own.state(tmp_path)
    (tmp_path / "a" / ".thumbnails").mkdir()
    for file in (".DS_Store", "a/Thumbs.db", "a/._1.png", "a/.thumbnails/1.png", "notes.txt"):
        (tmp_path / file).touch()
    assert own.state(tmp_path) == before
    (tmp_path / "a" / "2.png").touch()
    assert own.state(tmp_path) != before


def test_damaged_data_are_found_before_anything_is_planned(make: Make, mine: Path) -> None:
    with np.load(mine) as whole:
        arrays = dict(whole)
    np.savez(mine, **arrays, split=np.array(["train", "test"]))
    with pytest.raises(UserError, match=r"mine\.npz: split has shape \[2\]"):
        make()
