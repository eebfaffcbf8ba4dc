"""Run docs/tour.ipynb without Jupyter; `python tests/tour.py` keeps the results in it, and the README's pictures."""

from __future__ import annotations

import base64
import io
import json
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import torch

NOTEBOOK = Path(__file__).parents[1] / "docs/tour.ipynb"


def cells() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return found


def results() -> Iterator[tuple[str, list[bytes]]]:
    """Run the cells of code one after the other; yield what each prints, and its pictures as PNG."""
    names: dict[str, Any] = {}
    plt.close("all")  # others may have left some open
    for cell in cells():
        if cell["cell_type"] == "code":
            printed = io.StringIO()
            with redirect_stdout(printed), torch.no_grad():  # which also restores the mode that the first cell sets
                exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
            yield printed.getvalue(), [_png(number) for number in plt.get_fignums()]
            plt.close("all")


def keep() -> None:
    """Write the results into the notebook, and the pictures that have a name to `docs/tour-<name>.png`."""
    whole = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    code = [cell for cell in whole["cells"] if cell["cell_type"] == "code"]
    for number, (cell, (text, pictures)) in enumerate(zip(code, results(), strict=True), 1):
        shown = [
            {"output_type": "display_data", "metadata": {}, "data": {"image/png": base64.b64encode(each).decode()}}
            for each in pictures
        ]
        said = [{"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)}] if text else []
        cell |= {"execution_count": number, "outputs": [*said, *shown]}
        if name := cell["metadata"].get("picture"):
            NOTEBOOK.with_name(f"tour-{name}.png").write_bytes(pictures[0])
    NOTEBOOK.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _png(number: int) -> bytes:
    file = io.BytesIO()
    plt.figure(number).savefig(file, format="png", dpi=80, bbox_inches="tight", metadata={"Software": None})
    return file.getvalue()


if __name__ == "__main__":
    sys.exit(keep())
