"""`dvc.yaml`: as it is generated, and as Snakemake needs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from recaps import generated
from recaps.workflow.pipeline import dvc_yaml

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def stages(root: Path) -> dict[str, Any]:
    return yaml.safe_load((root / "dvc.yaml").read_text(encoding="utf-8"))["stages"]


def test_dvc_yaml_agrees_with_code_and_configuration(root: Path) -> None:
    drift = generated.drift({root / "dvc.yaml": dvc_yaml(root)})
    assert not drift, f"run `python -m recaps.workflow.pipeline --fix`\n{drift}"


def test_dvc_deletes_nothing_under_snakemake(stages: dict[str, Any]) -> None:
    for stage in stages.values():
        for output in (*stage["outs"], *stage.get("metrics", ())):
            assert list(output.values()) == [{"persist": True}]


def test_what_a_stage_reads_exists_or_is_made_by_another(root: Path, stages: dict[str, Any]) -> None:
    made = {path for stage in stages.values() for output in stage["outs"] for path in output}
    for name, stage in stages.items():
        for path in stage["deps"]:
            assert path in made or (root / path).exists(), f"{name}: {path}"
            assert not path.startswith("data"), "DVC would write the hash of a damaged raw file into data.dvc"


def test_stages_read_their_own_papers_code_alone(stages: dict[str, Any]) -> None:
    papers = stages.keys() - {"data", "report"}
    for name in papers:
        read = [Path(path) for path in stages[name]["deps"]]
        assert {path.stem for path in read if path.parent.name == "papers" and path.stem in papers} == {name}
    assert "src/recaps/nn/routing/em.py" in stages["consensus"]["deps"]
    assert not [path for path in stages["sparse"]["deps"] if path.endswith(("/em.py", "/nn", "/routing", "/models"))]
    assert "src/recaps/papers/recaps.mplstyle" in stages["sparse"]["deps"]
