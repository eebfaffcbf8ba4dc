"""Heads: classifiers on latents."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from recaps.config.base import snapshot_of
from recaps.config.heads import Head, Part, Protocol
from recaps.datasets.catalogue import DERIVED_FROM
from recaps.errors import UserError, nearest
from recaps.io import read_json, write_json
from recaps.npz import read

log = logging.getLogger(__name__)

Features = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


class Fitted(NamedTuple):
    """A fitted classifier, and the originals of the images that it was fitted on."""

    classifier: Any
    originals: Labels


#: Fitted classifiers, one for each draw, by the settings of the head and of the images that they are fitted on.
Fits = dict[str, list[Fitted]]

#: An original whose number is this modulo 7 is for testing, in protocols with disjoint digits.
TEST_DIGIT = 6


def evaluate_all(
    latents: Path,
    heads: Mapping[str, Mapping[str, Any]],
    out: Path,
    *,
    kept: Path | None = None,
    code: str = "",
    threads: int = 1,
) -> None:
    """Evaluate heads on the latents of a run, and write their results to `out` (JSON), by head and protocol.

    Args:
        heads: the settings `head` and `protocol` of each evaluation, by head and protocol; see `evaluate`.
        kept: folder for the results of each head as soon as it is fitted. Results of an earlier attempt are used if
            they have the same settings, latents and code.
        code: what stands for the code.
        threads: number of threads, which changes no result.
    """
    results: dict[str, dict[str, Any]] = {}
    fits: Fits = {}
    for name, protocols in heads.items():
        for protocol, settings in protocols.items():
            file = kept / f"{name}-{protocol}.json" if kept else None
            key = _key(latents, settings, code) if file else ""
            made = read_json(file) if file and file.exists() else {}
            if not file or made.get("key") != key:
                made = {"key": key, "result": evaluate(latents, **settings, fits=fits, threads=threads)}
                log.info("%s, %s: accuracy %.2f %%", name, protocol, 100 * made["result"]["accuracy"])
                if file:
                    write_json(file, made)
            results.setdefault(name, {})[protocol] = made["result"]
    write_json(out, results)


def _key(latents: Path, settings: Mapping[str, Any], code: str) -> str:
    """Return what identifies the result of a head: its settings, its latents and the code."""
    sets = sorted({part["set"] for part in (settings["protocol"]["fit"], settings["protocol"]["test"]) if part})
    made = [str(read(latents, ("key",), part=name)["key"]) for name in sets]
    return hashlib.sha256(json.dumps([settings, made, code], sort_keys=True).encode()).hexdigest()[:16]


def evaluate(
    latents: Path, head: Mapping[str, Any], protocol: Mapping[str, Any], *, fits: Fits | None = None, threads: int = 1
) -> dict[str, Any]:
    """Fit a head on one part of the latents, test it on another, and return the result.

    Args:
        head: settings of a `recaps.config.heads.Head`.
        protocol: settings of a `recaps.config.heads.Protocol`.
        fits: classifiers that were fitted on these latents before; those that this call fits are added.

    Returns:
        `accuracy` (a fraction), the numbers of images `n` and `n_fit`, the settings, and how it was measured.

    Raises:
        UserError: the latents have too few images for a part, or lack an array.
    """
    settings, rules = Head.model_validate(head), Protocol.model_validate(protocol)
    started = time.perf_counter()
    tested, truth, original = _select(latents, rules.test, settings)
    n_fit: int = 0
    shared: int | None = None
    if settings.kind == "argmax":
        accuracy = highest_are_labels(tested, truth).mean()
    else:
        assert rules.fit is not None
        fitted = _fit(latents, settings, rules.fit, {} if fits is None else fits, threads)
        n_fit = len(fitted[0].originals)
        if _origin(rules.fit.set) != _origin(rules.test.set):
            shared = 0
        elif rules.fit.set == rules.test.set and original.min() >= 0:
            shared = int(np.isin(original, np.concatenate([each.originals for each in fitted])).sum())
        accuracy = np.mean([(each.classifier.predict(tested) == truth).mean() for each in fitted])
    return {
        "kind": "head",
        "accuracy": float(accuracy),
        "n": len(truth),
        "n_fit": n_fit,
        "test_images_whose_original_was_fitted": shared,
        "seconds": round(time.perf_counter() - started, 2),
        "head": settings.model_dump(),
        "protocol": rules.model_dump(),
        "stand_in": bool(read(latents, ("stand_in",), part=rules.test.set)["stand_in"]),
    }


def _origin(set_name: str) -> str:
    """The split of the base set that a split consists of, or is made from."""
    return DERIVED_FROM.get(snapshot_of(set_name)[0].split("/")[1], "train")


def highest_are_labels(scores: Features, labels: Labels) -> npt.NDArray[np.bool_]:
    """Return whether the labels have the highest scores, bool [N].

    Args:
        scores: class scores, [N, classes].
        labels: [N], or n labels of each image in any order, [N, n].
    """
    wanted = labels.reshape(len(labels), -1)
    highest = np.argsort(-scores, axis=1, kind="stable")[:, : wanted.shape[1]]
    return np.asarray((np.sort(highest, 1) == np.sort(wanted, 1)).all(1))


def features(latents: Mapping[str, npt.NDArray[Any]], head: Head) -> Features:
    """Concatenate the head's arrays of the latents, each [N, ...], to features [N, D]."""
    masked = {"masked": latents["capsules"] * latents["mask"][..., None]} if "masked" in head.features else {}
    arrays = [{**latents, **masked}[name] for name in head.features]
    return np.concatenate([each.reshape(len(each), -1) for each in arrays], 1, dtype=np.float32)


def classifier(head: Head, threads: int = 1) -> Any:
    """Return the unfitted scikit-learn classifier of a head."""
    if head.kind == "svm":
        from recaps.evaluation.svm import PairwiseSVC

        fitted = PairwiseSVC(C=head.C, gamma=head.gamma, n_jobs=threads)
    else:
        from sklearn.linear_model import LogisticRegression

        fitted = LogisticRegression(C=head.C, tol=1e-3, max_iter=1000)
    if not head.standardise:
        return fitted
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), fitted)


def _fit(latents: Path, head: Head, part: Part, fits: Fits, threads: int) -> list[Fitted]:
    """Fit a head on each draw of a part, or return it from `fits`."""
    key = head.model_dump_json() + part.model_dump_json()
    if key not in fits:
        values, labels, originals = _select(latents, part, head)
        if labels.ndim > 1:
            raise UserError(f"{latents}: images of {part.set} have several labels, which needs an 'argmax' head")
        draws = [_draw(labels, part, draw, f"{latents}, {part.set}") for draw in range(part.draws)]
        fits[key] = [
            Fitted(classifier(head, threads).fit(values[rows], labels[rows]), originals[rows]) for rows in draws
        ]
    return fits[key]


def _draw(labels: Labels, part: Part, draw: int, where: str) -> npt.NDArray[np.intp]:
    """Return the rows of one draw of `per_class` images of each class, in file order; all rows without `per_class`."""
    if part.per_class is None:
        return np.arange(len(labels))
    random = np.random.default_rng(draw)
    of_class = {int(label): np.flatnonzero(labels == label) for label in np.unique(labels)}
    for label, rows in of_class.items():
        if len(rows) < part.per_class:
            raise UserError(
                f"{where}: per_class is {part.per_class}, but there are {len(rows)} images of class {label}"
            )
    return np.sort(np.concatenate([random.choice(rows, part.per_class, replace=False) for rows in of_class.values()]))


def _select(latents: Path, part: Part, head: Head) -> tuple[Features, Labels, Labels]:
    """Return features, labels and originals of a part."""
    arrays = read(latents, part=part.set)
    where = f"{latents}, {part.set}"
    asked = [name for each in head.features for name in (("capsules", "mask") if each == "masked" else (each,))]
    for name in (*asked, *(["original"] if part.digits != "all" else [])):
        if name not in arrays:
            raise UserError(f"{where}: has no '{name}', which the head or its protocol needs{nearest(name, arrays)}")
    rows = np.arange(len(arrays["labels"]))
    if part.digits != "all":
        kept_for_test = arrays["original"] % 7 == TEST_DIGIT
        rows = rows[kept_for_test if part.digits == "test" else ~kept_for_test]
    found = len(rows)
    rows = rows[part.start : None if part.count is None else part.start + part.count]
    if len(rows) < (part.count or 1):
        raise UserError(
            f"{where}: the protocol needs {part.count or 'all'} images from number {part.start} on, but there are"
            f" {found}; extract more latents or correct the protocol in paper.yaml"
        )
    original = arrays.get("original", np.full(len(arrays["labels"]), -1))
    return features(arrays, head)[rows], arrays["labels"][rows], original[rows]
