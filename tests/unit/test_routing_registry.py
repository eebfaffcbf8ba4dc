"""The registry of routing algorithms: what it finds, and how it checks and suggests options."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from places import CONFIG

from recaps.config.load import Project, load
from recaps.errors import UserError
from recaps.nn.routing import registry
from recaps.nn.routing.dynamic import DynamicRouting

pytestmark = pytest.mark.unit


def project(paper: str, variant: str, **model: object) -> Project:
    overrides = {paper: {"variants": {variant: {"model": model}}}}
    return load({"scale": "smoke", "papers": [paper], "overrides": overrides}, CONFIG)


def routing(paper: str, variant: str, **model: object) -> object:
    """The settings of a variant's routing, with changes of its model."""
    return project(paper, variant, **model).papers[paper].variants[variant].model.routing


def test_every_algorithm_is_found_by_its_interface() -> None:
    votes, poses = (set(registry.algorithms(each)) for each in ("VoteRouting", "PoseRouting"))
    assert votes >= {"attention", "cosine", "dynamic"}
    assert poses >= {"connectionist", "em", "similarity"}
    assert not votes & poses


def test_the_registry_imports_no_pytorch() -> None:
    program = "import sys, recaps.models.options; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_options_have_types_defaults_limits_and_descriptions() -> None:
    for interface in registry.INTERFACES:
        for name, settings in registry.algorithms(interface).items():
            for option, field in settings.model_fields.items():
                assert option == "name" or field.description, f"{name}: {option}"
    fields = registry.algorithms("VoteRouting")["dynamic"].model_fields
    assert {name: field.default for name, field in fields.items()} == {
        "name": "dynamic", "iterations": 3, "leaky": False, "gradient": "all",
    }  # fmt: skip
    assert "most PyTorch versions" in (fields["gradient"].description or ""), "also of further lines"


def test_a_name_stands_for_its_defaults() -> None:
    assert routing("consensus", "mnist-em", routing="em").iterations == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("emm", "there is no routing 'emm' (did you mean 'em'?)"),
        ({"name": "dynamic"}, "'dynamic' routes other capsules than those of this family (valid: connectionist, em"),
        ({"name": "em", "iteration": 2}, "routing.iteration' (did you mean 'iterations'?)"),
        ({"name": "em", "iterations": 0}, "routing.iterations: Input should be greater than or equal to 1, not 0"),
        ({"name": "em", "iterations": "two"}, "routing.iterations: Input should be a valid integer"),
        ({"name": "similarity", "kernels": [1, 2]}, "routing.kernels"),
    ],
)
def test_a_mistake_is_reported_in_one_line(given: object, message: str) -> None:
    with pytest.raises(UserError) as error:
        project("consensus", "mnist-em", routing=given)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_settings_are_sent_to_other_processes() -> None:
    settings = registry.algorithms("PoseRouting")["em"](iterations=2)
    assert pickle.loads(pickle.dumps(settings)) == settings
    with pytest.raises(AttributeError, match="no attribute 'NoSettings'"):
        registry.NoSettings  # noqa: B018


def test_a_layer_is_built_with_its_options() -> None:
    settings = registry.algorithms("VoteRouting")["dynamic"](iterations=2, leaky=True)
    layer = registry.build(settings, 6, 4, 8)
    assert isinstance(layer, DynamicRouting)
    assert (layer.iterations, layer.leaky, layer.gradient) == (2, True, "all")


def test_a_module_with_two_routings_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "both.py"
    file.write_text("class A(VoteRouting): ...\nclass B(interface.PoseRouting): ...\n")
    with pytest.raises(AssertionError, match=r"both\.py has several routings"):
        registry._class(file)
