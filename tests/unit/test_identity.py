"""What makes a result new: its settings, its data, its modules."""

from __future__ import annotations

import json
from typing import Any

import pytest

from recaps import identity
from recaps.config.families import families
from recaps.config.training import Training
from recaps.identity import differences, key
from recaps.models.options import ConvNetOptions, SupCapsOptions

pytestmark = pytest.mark.unit


def settings(**values: Any) -> dict[str, dict[str, Any]]:
    return {"settings": values}


def full(**training: Any) -> dict[str, Any]:
    """The settings of a run, as the plan gives them."""
    return {
        "model": ConvNetOptions().model_dump(mode="json"),
        "training": Training(**training).model_dump(mode="json"),
        "seed": 0,
    }


def test_settings_are_named_by_their_path_with_the_old_and_the_new_value() -> None:
    was = settings(**full(steps=10), nested={"a": {"b": "x"}})
    now = settings(**full(steps=20), nested={"a": {"b": "y"}})
    assert differences(was, was) == []
    assert differences(was, now) == ["training.steps: 10 -> 20", 'nested.a.b: "x" -> "y"']


@pytest.mark.parametrize(
    ("was", "now", "difference"),
    [
        ({}, {"a": 1}, "a: (none) -> 1"),
        ({"a": 1}, {}, "a: 1 -> (none)"),
        ({"a": None}, {"a": 0}, "a: null -> 0"),
        ({"a": None}, {}, "a: null -> (none)"),
        ({"a": {}}, {"a": {"b": 2}}, "a.b: (none) -> 2"),
        ({"a": {"b": 2}}, {"a": {}}, "a.b: 2 -> (none)"),
        ({"a": [1, 2]}, {"a": [2, 1]}, "a: [1, 2] -> [2, 1]"),
        ({"a": True}, {"a": False}, "a: true -> false"),
    ],
)
def test_one_setting(was: dict[str, Any], now: dict[str, Any], difference: str) -> None:
    """Beside one that is the same."""
    found = differences(settings(same=1, **was), settings(same=1, **now))
    assert difference in found
    assert not [line for line in found if "same" in line]


def test_long_values_are_cut() -> None:
    (line,) = differences(settings(a="x" * 1000), settings(a="y" * 1000))
    assert line.startswith('a: "xxx')
    assert line.count("...") == 2
    assert len(line) < 130


def test_tuples_are_lists_and_numbers_texts_as_names() -> None:
    was, now = settings(a=(1, (2, 3)), b={1: "x"}), settings(a=[1, [2, 3]], b={"1": "x"})
    assert differences(was, now) == differences(now, was) == []
    assert key(was) == key(now)


@pytest.mark.parametrize(("part", "option"), [("training", "lr_decay_steps"), ("model", "classes")])
def test_an_option_that_is_newer_has_its_default_in_old_settings(part: str, option: str) -> None:
    now = full()
    was = json.loads(json.dumps(now))
    default = was[part].pop(option)
    assert differences(settings(**was), settings(**now)) == []
    assert differences(settings(deep={"er": was}), settings(deep={"er": now})) == []
    now[part][option] = other = default + 1
    assert differences(settings(**was), settings(**now)) == [f"{part}.{option}: {default} -> {other}"]


def test_also_an_option_of_a_routing() -> None:
    now = {"model": SupCapsOptions().model_dump(mode="json")}
    was = json.loads(json.dumps(now))
    assert was["model"]["routing"].pop("iterations") == 3
    assert differences(settings(**was), settings(**now)) == []
    now["model"]["routing"]["iterations"] = 4
    assert differences(settings(**was), settings(**now)) == ["model.routing.iterations: 3 -> 4"]


def test_heads_and_protocols_have_defaults_too() -> None:
    head = {"kind": "svm"}
    protocol = {"title": "p", "test": {"set": "mnist/test"}}
    whole = {
        "head": identity.Head.model_validate(head).model_dump(mode="json"),
        "protocol": identity.Protocol.model_validate(protocol).model_dump(mode="json"),
    }
    assert whole["head"] != head
    assert whole["protocol"] != protocol
    assert differences(settings(svm={"p": {"head": head, "protocol": protocol}}), settings(svm={"p": whole})) == []


def test_an_option_that_is_no_more_is_a_difference() -> None:
    now = full()
    was = full() | {"training": full()["training"] | {"warm_up": 3}}
    assert differences(settings(**was), settings(**now)) == ["training.warm_up: 3 -> (none)"]


def test_a_family_that_is_no_more_is_a_difference() -> None:
    was = full() | {"model": {"family": "forgotten"}}
    assert 'model.family: "forgotten" -> "convnet"' in differences(settings(**was), settings(**full()))


def test_data_are_named_with_the_start_of_their_digests() -> None:
    was = {"data": {"mnist/train": "a" * 64, "mnist/test": "b" * 64, "gone": "c" * 64}}
    now = {"data": {"mnist/train": "a" * 64, "mnist/test": "d" * 64, "more": "e" * 64}}
    assert differences(was, now) == [
        "mnist/test changed (bbbbbbbb -> dddddddd)",
        "gone is no longer an input",
        "more is now an input",
    ]


def test_data_without_a_known_digest_are_not_compared() -> None:
    """On either side: they are not there."""
    was, now = {"data": {"a": "1", "b": "2"}}, {"data": {"a": None, "b": "2"}}
    assert differences(was, now) == differences(now, was) == []
    assert differences({"data": {"b": "2"}}, now) == differences(now, {"data": {"b": "2"}}) == []
    assert differences(now, {"data": {"a": None, "b": "3"}}) == ["b changed (2 -> 3)"]


def test_modules() -> None:
    """One that is no longer used is no difference."""
    was = {"modules": {"recaps.a": "1" * 16, "recaps.b": "2" * 16, "recaps.gone": "3" * 16}}
    now = {"modules": {"recaps.a": "1" * 16, "recaps.b": "4" * 16, "recaps.new": "5" * 16}}
    assert differences(was, now) == ["recaps.b changed (22222222 -> 44444444)", "recaps.new is new"]


def test_a_part_that_is_not_known_is_not_compared() -> None:
    was = {"settings": {"a": 1}, "data": {"x": "1"}, "modules": {"m": "1"}}
    assert differences(was, {"settings": {"a": 1}, "modules": {"m": "1"}}) == []
    assert differences({}, was) == []
    assert differences(was, {name: {} for name in was})


def test_all_parts_are_compared() -> None:
    """Also the kind of device, in the identity of checkpoints."""
    was = {"settings": {"a": 1}, "data": {"x": "1"}, "modules": {"m": "1"}, "device": {"type": "cpu"}}
    now = {"settings": {"a": 2}, "data": {"x": "2"}, "modules": {"m": "2"}, "device": {"type": "cuda"}}
    assert differences(was, now) == ["a: 1 -> 2", "x changed (1 -> 2)", "m changed (1 -> 2)", 'type: "cpu" -> "cuda"']


def test_the_digest_of_a_split_is_that_of_what_it_holds() -> None:
    """Its arrays and how images are made from them; not when and by which version it was prepared."""
    record = {"digest": "a", "seed": 0, "parameters": {"shift": 2}, "prepared": "today", "versions": {"numpy": "2"}}
    assert identity.of_split(record) == identity.of_split(record | {"prepared": "tomorrow", "versions": {}})
    others = [{"digest": "b"}, {"seed": 1}, {"parameters": {"shift": 3}}]
    assert len({identity.of_split(record | other) for other in [{}, *others]}) == 4


def test_the_key_is_stable() -> None:
    """It is part of paths: another one would orphan the checkpoints of earlier versions."""
    assert key({"settings": {"b": (1, 2), "a": 0.5}, "data": {}}) == "94cf39fc"
    assert key({"data": {}, "settings": {"a": 0.5, "b": [1, 2]}}) == "94cf39fc"
    assert key({"data": {}, "settings": {"a": 0.5, "b": [2, 1]}}) != "94cf39fc"


def test_an_option_that_has_moved_is_no_difference() -> None:
    """Capsules had their warm-up in the model's options."""
    training = Training(warmup=50).model_dump(mode="json")
    was = {"model": {"family": "generative", "warmup_steps": 50}, "training": {**training}}
    del was["training"]["warmup"]
    model = families()["generative"]().model_dump(mode="json")
    for warmup, expected in ((50, []), (20, ["training.warmup: 50 -> 20"])):
        now = {"model": model, "training": training | {"warmup": warmup}}
        assert differences({"settings": was}, {"settings": now}) == expected
