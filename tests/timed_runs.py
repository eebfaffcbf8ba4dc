"""Records of published runs, for tests of times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recaps.config.variant import Variant
from recaps.io import write_json


def publish(folder: Path, name: str, variant: Variant, device: str, seconds: float, **record: Any) -> None:
    """Write the record of a run of ten steps, each of which took some seconds."""
    number = len(list(folder.glob("*/runs/*/*/*")))
    config = variant.model_dump(mode="json", include={"model", "data", "training"})
    about = {"device": device, "variant": name, "steps": 10, "wall_seconds": 10 * seconds, "config": config}
    write_json(folder / f"desk/runs/paper/{name}/seed-{number}/record.json", about | record)
