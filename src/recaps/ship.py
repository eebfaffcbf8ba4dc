"""Add finished runs to the trained models that come with the package.

`python -m recaps.ship results/desk/runs/sparse/supcaps-28/seed-0` writes `src/recaps/weights/sparse/supcaps-28`, which
`recaps.load("sparse/supcaps-28")` loads: the weights, the settings, the record, eight test images with the model's
outputs, and a model card. The weights are in half precision if the accuracy on the test set then stays within 0.05
points, and else in float32.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from sklearn.linear_model import RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from recaps import npz
from recaps.arrays import Arrays, read
from recaps.command import command
from recaps.config.reading import read_yaml
from recaps.errors import UserError
from recaps.io import digest_of, read_json, write_bytes, write_json, write_text
from recaps.models.model import Model
from recaps.npz import Array
from recaps.papers import FOLDER
from recaps.trained import WEIGHTS, load, outputs

#: Points of accuracy that half precision may change.
POINTS = 0.05
#: Bytes of the weights of a model, and of all.
MOST_BYTES, MOST_BYTES_OF_ALL = 9_000_000, 30_000_000
#: Training images that the linear classifier of a model without class scores is fitted on.
FITTED = 10_000
EXAMPLES = 8
#: Images that are evaluated at a time.
AT_A_TIME = 250

CARD = """\
# {title}

`{name}`, from *{paper[title]}* ({paper[reference]}).

```python
import recaps

model, settings, record = recaps.load("{name}")
images, labels = recaps.examples("{name}")  # eight test images
```

| | |
| --- | --- |
| data | {data[title]}, {data[n]:,} training images ({kind}) |
| training | {steps} steps of {config[training][batch_size]} images, seed {config[seed]}, scale `{config[scale]}`, \
{minutes:.0f} minutes on {record[device]} |
| parameters | {record[parameters]:,} |
| accuracy | {shipped[accuracy]:.2f} % of {shipped[test][n]:,} test images ({shipped[by]}) |
| stored in | {shipped[precision]}; before, the accuracy was {shipped[accuracy_before]:.2f} % |
| code | commit {record[git][commit]} |
| licence | MIT, like the package; the example images are those of {data[title]}, under its own terms |

[docs/library.md](../../../../../docs/library.md#trained-models) says what `model` takes and returns. The model is for
research and teaching. It saw no images other than those of {data[title]}.
"""


def ship(run: Path, into: Path = WEIGHTS) -> Path:
    """Write a finished run as a model of the package to the folder `<paper>/<variant>` in `into`, and return it.

    The run's data must be where the workflow has them, `results/<scale>/datasets`.

    Raises:
        UserError: there is no such run, it is of uncommitted code, or its weights are too large.
    """
    model, config, record = load(run, device="cpu")
    if record["git"]["dirty"]:
        raise UserError(f"{run}: trained with uncommitted code; commit, and train it again")
    name = f"{config['paper']}/{config['variant']}"
    prepared = run.resolve().parents[3] / "datasets"
    train, test = (read(prepared / config["data"].partition("/")[0] / split) for split in ("train", "test"))

    exact = {key: value.clone() for key, value in model.state_dict().items()}
    half = {key: value.half() if value.dtype == torch.float32 else value for key, value in exact.items()}
    readout: Any = None
    if type(model).class_scores is Model.class_scores:  # it learned without labels
        readout = make_pipeline(StandardScaler(), RidgeClassifier())
        readout.fit(_outputs(model, config, train.images[:FITTED]), train.labels[:FITTED])
    before = _accuracy(model, config, test, readout)
    model.load_state_dict(half)
    after, stored = _accuracy(model, config, test, readout), half
    if abs(after - before) > POINTS:
        model.load_state_dict(exact)
        after, stored = before, exact

    content = safetensors.torch.save({key: value.contiguous() for key, value in stored.items()})
    others = sum(f.stat().st_size for f in into.glob("*/*/model.safetensors") if f.parent != into / name)
    sizes = {"the weights": (len(content), MOST_BYTES), "all weights": (others + len(content), MOST_BYTES_OF_ALL)}
    for what, (size, most) in sizes.items():
        if size > most:
            told = f"{size / 1e6:.1f} MB, but at most {most / 1e6:.0f} MB may"
            raise UserError(f"{name}: {what} have {told}; leave it out")
    folder = into / name
    write_bytes(folder / "model.safetensors", content)
    write_json(folder / "config.json", read_json(run / "config.json"))
    chosen = _examples(test.labels)
    images = test.images[chosen]
    examples: dict[str, Array] = {"images": images, "labels": test.labels[chosen], **outputs(model, config, images)}
    npz.save(folder / "examples.npz", examples, compressed=True)
    digests = {each: digest_of(folder / each) for each in ("model.safetensors", "config.json", "examples.npz")}
    measured = {
        "accuracy": round(after, 2),
        "accuracy_before": round(before, 2),
        "by": "its own class scores" if readout is None else f"ridge classifier, fitted on {FITTED:,} training images",
        "precision": "half precision" if stored is half else "float32",
        "test": {"set": test.record["title"], "n": len(test), "digest": test.record["digest"]},
        "sha256": digests,
    }
    write_json(folder / "record.json", record | {"shipped": measured})
    write_text(folder / "README.md", card(record | {"shipped": measured}))
    return folder


def card(record: Mapping[str, Any]) -> str:
    """Return the model card, from the record of a model of the package."""
    config, data = record["config"], record["dataset"]
    paper = read_yaml(FOLDER / config["paper"] / "paper.yaml")
    steps, planned = record["steps"], config["training"]["steps"]
    return CARD.format(
        title=paper["variants"].get(config["variant"], {}).get("title", config["variant"]),
        name=f"{config['paper']}/{config['variant']}",
        paper=paper,
        config=config,
        data=data,
        kind="stand-in data, so the numbers mean nothing" if data["stand_in"] else "official files",
        steps=f"{steps:,}" if steps == planned else f"{steps:,} of {planned:,}",
        minutes=record["wall_seconds"] / 60,
        record=record,
        shipped=record["shipped"],
    )


def _examples(labels: Array) -> list[int]:
    """Return the first image of each of the first eight classes; if there are fewer classes, the first eight images."""
    firsts = [int(np.flatnonzero(labels == each)[0]) for each in np.unique(labels)[:EXAMPLES]]
    return firsts if len(firsts) == EXAMPLES else list(range(EXAMPLES))


def _outputs(model: Model, config: Mapping[str, Any], images: Array) -> Array:
    """Return all outputs of a model as rows, [N, features]."""
    rows = []
    for start in range(0, len(images), AT_A_TIME):
        made = outputs(model, config, np.array(images[start : start + AT_A_TIME]))
        rows.append(np.concatenate([each.reshape(len(each), -1) for each in made.values()], 1))
    return np.concatenate(rows)


def _accuracy(model: Model, config: Mapping[str, Any], test: Arrays, readout: Any) -> float:
    """Return the percentage of the test images that are classified correctly."""
    made = _outputs(model, config, test.images)
    found = made.argmax(1) if readout is None else readout.predict(made)
    return 100 * float((found == test.labels).mean())


@command
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m recaps.ship", description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="e.g. results/desk/runs/sparse/dense/seed-0")
    for run in parser.parse_args(arguments).runs:
        if read_json(run / "record.json")["dataset"]["stand_in"]:
            raise UserError(f"{run}: trained on stand-in data; ship a run of official data")
        folder = ship(run)
        shipped = read_json(folder / "record.json")["shipped"]
        print(f"{folder}: {shipped['accuracy']} % in {shipped['precision']}, {shipped['accuracy_before']} % before")
    return 0


if __name__ == "__main__":
    sys.exit(main())
