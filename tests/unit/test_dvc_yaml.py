"""`dvc.yaml`: it names all that its stages read, and deletes nothing."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from recaps.plan.modules import Code
from recaps.plan.receipts import FOLDER

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def stages(root: Path) -> dict[str, Any]:
    return yaml.safe_load((root / "dvc.yaml").read_text(encoding="utf-8"))["stages"]


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


@pytest.mark.parametrize("stage", ["data", "report"])
def test_a_stage_names_all_code_that_its_rules_depend_on(
    root: Path, stages: dict[str, Any], stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that DVC sees every change that Snakemake sees; the stage `papers` names the whole library.

    Housekeeping counts too, as it decides what is made and read; but neither stage trains or loads weights.
    """
    for_users = ("recaps.estimators", "recaps.trained")  # what `import recaps` offers, and no stage uses
    monkeypatch.setattr("recaps.plan.modules.HOUSEKEEPING", ("recaps.training", "recaps.training.*", *for_users))
    code = Code(root / "src" / "recaps")
    rules = re.findall(r"^rule (\w+):", (root / "rules" / f"{stage}.smk").read_text(), re.MULTILINE)
    modules = code.closure(
        [*(f"recaps.plan.stages:{rule}" for rule in rules), "recaps.config.load", "recaps.plan.receipts"]
    )
    read = {code.file(name) for name in modules if name != "recaps"}
    assert {root / "src/recaps" / file for file in ("identity.py", "io.py", "arrays.py")} <= read
    named = [root / path for path in stages[stage]["deps"]]
    assert [file for file in read if not any(file == path or path in file.parents for path in named)] == []
    assert "src/recaps" in stages["papers"]["deps"]


def test_a_change_of_any_setting_runs_the_stages_again(root: Path, stages: dict[str, Any]) -> None:
    """Except where the settings say how something is made, not what."""
    settings = set(yaml.safe_load((root / "config/config.yaml").read_text(encoding="utf-8")))
    how = {"checkpoint_seconds", "data", "device", "max_training_minutes", "mirror", "results"}
    named = {name: set(stage["params"][0]["config/config.yaml"]) for name, stage in stages.items()}
    assert named["papers"] == settings - how
    assert named["data"] == settings - how - {"seeds"} | {"data"}
    # What else changes the scorecard and the report changes the runs.
    assert named["report"] == settings - how - {"datasets", "overrides", "seeds"}


def test_receipts_travel_with_the_results(root: Path, stages: dict[str, Any]) -> None:
    """All lie in folders that are outputs, except those of the files beside these folders."""
    made = {path for stage in stages.values() for output in stage["outs"] for path in output}
    assert f"${{results}}/${{scale}}/{FOLDER}" in made
    ignored = (root / ".dvcignore").read_text(encoding="utf-8").splitlines()
    assert not [line for line in ignored if fnmatch.fnmatch(FOLDER, line.strip("/"))]
