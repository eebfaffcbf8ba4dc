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

MINE = '''
from pydantic import Field
from recaps.nn.routing.interface import VoteRouting
from recaps.nn.routing.options import VoteOptions

class Mean(VoteRouting):
    class Options(VoteOptions):
        factor: float = Field(1, gt=0)
        """Factor on the mean."""

class Other: ...
'''


def project(paper: str, variant: str, **model: object) -> Project:
    overrides = {paper: {"variants": {variant: {"model": model}}}}
    return load({"scale": "smoke", "papers": [paper], "overrides": overrides}, CONFIG)


def routing(paper: str, variant: str, **model: object) -> object:
    """The settings of a variant's routing, with changes of its model."""
    return project(paper, variant, **model).papers[paper].variants[variant].model.routing


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user's on Python's path."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)


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


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "mine:Mean", "facto": 2}, "routing: mine:Mean: unknown key 'facto' (did you mean 'factor'?)"),
        ({"name": "mine:Mean", "factor": 0}, "routing: mine:Mean: factor: Input should be greater than 0, not 0"),
        ("mine:Men", "'mine:Men' cannot be imported (AttributeError: module 'mine' has no attribute 'Men')"),
        ("elsewhere:Mean", "cannot be imported (ModuleNotFoundError: No module named 'elsewhere'); name a class at"),
        ("mine:Other", "'mine:Other' is no subclass of VoteRouting or PoseRouting of recaps.nn.routing.interface"),
        ("recaps.nn.routing.em:EMRouting", "is a PoseRouting, but this family needs a VoteRouting"),
    ],
)
@pytest.mark.usefixtures("mine")
def test_a_mistake_with_a_class_of_the_users_is_reported_in_one_line(given: object, message: str) -> None:
    with pytest.raises(UserError) as error:
        project("comparison", "supcaps", routing=given)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("mine")
def test_a_class_of_the_users_is_chosen_by_its_module() -> None:
    """Settings, jobs in other processes, and the layer have its options."""
    for given, factor in (("mine:Mean", 1), ({"name": "mine:Mean", "factor": 3}, 3)):
        found = project("comparison", "supcaps", routing=given).papers["comparison"].variants["supcaps"].model
        assert found.model_dump(mode="json")["routing"] == {"name": "mine:Mean", "factor": factor}
        assert pickle.loads(pickle.dumps(found.routing)) == found.routing
        assert "mine" in found.modules
        layer = registry.build(found.routing, 6, 4, 8)
        assert type(layer).__name__ == "Mean"
        assert layer.options.factor == factor


@pytest.mark.usefixtures("mine")
def test_classes_have_names() -> None:
    assert registry.name_of(DynamicRouting) == "dynamic"
    assert registry.name_of(registry.load("mine:Mean")) == "mine:Mean"


def test_settings_are_sent_to_other_processes() -> None:
    settings = registry.algorithms("PoseRouting")["em"](iterations=2)
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_a_layer_is_built_with_its_options() -> None:
    for interface, arguments in (("VoteRouting", (6, 4, 8)), ("PoseRouting", (4, 2, False))):
        for name, settings in registry.algorithms(interface).items():
            layer = registry.build(settings(), *arguments)
            assert registry.name_of(type(layer)) == name
            assert layer.Options is settings
            assert layer.options == settings()
