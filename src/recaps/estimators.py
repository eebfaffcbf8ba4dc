"""Capsule networks with the manners of scikit-learn: `CapsuleClassifier` and `CapsuleEncoder`.

Both take images as arrays [N, H, W], [N, H, W, C] or [N, features]. Rows of features are laid out as square images.
Bytes (uint8) are divided by 255; other numbers are scaled so that the training images span 0 to 1. Images that are
smaller than 24x24 get a border of zeros, because the networks begin with two convolutions.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self

import numpy as np
import safetensors.torch
import torch
from numpy.typing import ArrayLike
from pydantic import Field
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.model_selection import train_test_split
from sklearn.utils import check_array, check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor
from torch.nn.functional import pad

from recaps.config.base import Positive
from recaps.config.families import families
from recaps.config.reading import check
from recaps.config.training import Training
from recaps.errors import UserError, nearest
from recaps.models.model import Batch, Model
from recaps.models.network import CapsuleNetwork
from recaps.models.options import ClassCapsules, ConvNetOptions
from recaps.models.vae import VAE
from recaps.nn.routing import registry
from recaps.npz import Array
from recaps.training import device as devices
from recaps.training import machine
from recaps.training.batches import Batches, as_float
from recaps.training.images import Images
from recaps.training.step import fresh_model, take_steps

#: Images are at least this high and wide; smaller ones get a border of zeros.
SMALLEST = 24
#: Larger images get a warning, because the number of parameters grows with their area.
LARGEST = 40
#: Images that are evaluated at a time.
AT_A_TIME = 250
#: A quarter of the paper's width, as at scale `desk`. Other families have their paper's width.
NARROW: dict[str, dict[str, Any]] = {
    **{name: {"conv_channels": 64, "primary_types": 8} for name in ("supcaps", "discriminative", "sparsecaps")},
    "convnet": {"channels": [128, 64], "hidden": 256},
}

#: Steps of warm-up of the families whose paper's settings have one.
WARMUP = {"generative": 50}


class _Parameters(Training):
    """The parameters of an estimator that are numbers."""

    evaluate_every: Positive
    patience: Positive
    validation_fraction: float = Field(ge=0, lt=1)
    lr_floor: float = 0


#: What `fit` calls with each new row of `history_`.
Callback = Callable[[dict[str, float]], object]


@contextmanager
def _usual_modes() -> Iterator[None]:
    """Compute as if the caller had not changed PyTorch's modes: gradients, no autocast, float32 and CPU by default."""
    dtype, elsewhere = torch.get_default_dtype(), torch.get_default_device().type != "cpu"
    torch.set_default_dtype(torch.float32)
    try:
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autocast("cpu", enabled=False),
            torch.autocast("cuda", enabled=False),
            torch.device("cpu") if elsewhere else nullcontext(),
        ):
            yield
    finally:
        torch.set_default_dtype(dtype)


@dataclass(eq=False, repr=False)
class _Estimator(BaseEstimator):  # type: ignore[misc]
    """What the two estimators share: images, training, and pickles without code."""

    _default_model: ClassVar[str]

    model: str | None = None
    _: KW_ONLY
    routing: str | type | Mapping[str, Any] | None = None
    options: Mapping[str, Any] | None = None
    steps: int = 2000
    batch_size: int = 128
    learning_rate: float = 1e-3
    shift: int = 0
    validation_fraction: float = 0.0
    evaluate_every: int = 100
    patience: int = 5
    device: str | torch.device = "auto"
    threads: int | None = None
    verbose: bool = False
    random_state: int | np.random.RandomState | None = None

    # Images

    def _images(self, X: Any, *, fitting: bool) -> Tensor:
        """Return images [N, C, H, W], as bytes or as float32, and learn their shape and range if `fitting`."""
        if fitting:
            self.__dict__.pop("model_", None)  # what it learned is about to change
        else:
            self._check_shape(np.asarray(X).shape[1:])
        X = validate_data(self, X, reset=fitting, allow_nd=True)
        if X.dtype != np.uint8:
            X = X.astype(np.float64)
        if X.ndim > 4:
            raise ValueError(f"X has {X.ndim} axes; images are [N, H, W], [N, H, W, C] or [N, features]")
        if X.ndim == 4 and X.shape[1] <= 4 < X.shape[3]:
            shape = ", ".join(map(str, X.shape[1:]))
            raise ValueError(f"X has the shape [N, {shape}]; images are [N, H, W, C]: use numpy.moveaxis(X, 1, -1)")
        if not X.size:
            raise ValueError(f"X has the shape {list(X.shape)}: images without pixels")
        if fitting:
            self.input_shape_ = X.shape[1:]
            self.range_ = (0.0, 255.0) if X.dtype == np.uint8 else (float(X.min()), float(X.max()))
            self._warned = set[str]()
        self._check_range(X, fitting)
        low, high = self.range_
        pixels = _laid_out(X)
        if X.dtype != np.uint8 or self.range_ != (0.0, 255.0):
            pixels = ((pixels - low) / ((high - low) or 1.0)).astype(np.float32)
        images = torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))
        return pad(images, _border(images.shape[2:]))

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        """Refuse images of another shape than those of `fit`. scikit-learn's own check is for rows of features."""
        if shape != self.input_shape_ and max(len(shape), len(self.input_shape_)) > 1:
            given, seen = (", ".join(["N", *map(str, each)]) for each in (shape, self.input_shape_))
            hint = ": use X[None] for one image" if (shape or None) == self.input_shape_[1:] else ""
            raise ValueError(f"X has the shape [{given}], but fit saw images [{seen}]{hint}")

    def _check_range(self, X: Array, fitting: bool) -> None:
        """Warn once if X has other numbers than the training images, perhaps bytes instead of numbers from 0 to 1."""
        (low, high), least, most = self.range_, float(X.min()), float(X.max())
        tenth = (high - low) / 10
        outside = least < low - tenth or most > high + tenth
        narrow = (fitting or X.dtype != np.uint8) and 0 < most - least < tenth
        if (outside or narrow) and "range" not in self._warned:
            self._warned.add("range")
            numbers = f"X has values from {least:g} to {most:g}, but "
            told = "bytes are divided by 255; use X.astype(float) to have them scaled by their own range"
            seen = f"those of fit range from {low:g} to {high:g}; scale them in the same way"
            warnings.warn(numbers + (told if fitting else seen), UserWarning, stacklevel=2)

    def _pictures(self, images: Tensor) -> Array:
        """Undo `_images` for decoded images [N, C, H, W] with values in 0..1."""
        height, width = _laid_out(np.empty((0, *self.input_shape_))).shape[1:3]
        left, _, top, _ = _border((height, width))
        low, high = self.range_
        pixels = images[:, :, top : top + height, left : left + width].permute(0, 2, 3, 1).cpu().double().numpy()
        flat = (low + (high - low) * pixels).reshape(len(pixels), -1)
        return flat[:, : math.prod(self.input_shape_)].reshape(len(pixels), *self.input_shape_)

    # Training

    def _routing(self) -> dict[str, Any] | None:
        if self.routing is None:
            return None
        routing = dict(self.routing) if isinstance(self.routing, Mapping) else {"name": self.routing}
        name = routing.get("name")
        routing["name"] = name = registry.name_of(name) if isinstance(name, type) else str(name)
        if not registry.interface_of(name):
            known = [each for interface in registry.INTERFACES for each in registry.algorithms(interface)]
            raise ValueError(f"routing={self.routing!r}: no such routing{nearest(name, known)}")
        return routing

    def _family(self) -> str:
        """Return the name of the model's family: the one that was asked for, or that of the routing."""
        routing = self._routing()
        by_pose = routing is not None and registry.interface_of(routing["name"]) == "PoseRouting"
        name = self.model or ("matrixcaps" if by_pose else self._default_model)
        if name not in families():
            raise ValueError(f"model={name!r}: no such family{nearest(name, families())}")
        return name

    def _settings(self, classes: int) -> dict[str, Any]:
        """Return the options of the model for this number of classes."""
        name, routing = self._family(), self._routing()
        family, settings = families()[name], {"family": name, **NARROW.get(name, {})}
        if issubclass(family, ClassCapsules):
            settings["capsules"] = classes
        if issubclass(family, ConvNetOptions):
            settings["classes"] = classes
        settings |= self.options or {}
        if routing is not None:
            if "routing" not in family.model_fields:
                raise ValueError(f"routing={self.routing!r}: the family {name!r} has no choice of it; leave it out")
            settings["routing"] = routing
        return settings

    def _labels(self, y: Any, count: int, some: Any) -> Array:
        """Return the numbers of the labels of `some` images, 0 for the first of `classes_`, and learn these."""
        shape = list(np.asarray(y).shape)
        if len(shape) == 2 and shape[1] > 1:
            raise ValueError(f"y has the shape {shape}; labels are [N]: use numpy.argmax(y, 1) if they are one-hot")
        try:
            labels = validate_data(self, y=y, reset=False)
            check_classification_targets(labels)
            if len(labels) != count:
                raise ValueError(f"inconsistent numbers of samples: {count} images in X, but {len(labels)} labels in y")
            self.classes_, encoded = np.unique(labels[some], return_inverse=True)
        except TypeError as error:
            raise ValueError(f"y has labels that cannot be ordered ({error}); use only numbers or only text") from error
        return np.asarray(encoded)

    def _parameters(self) -> _Parameters:
        names = ("steps", "batch_size", "learning_rate", "shift", "evaluate_every", "patience", "validation_fraction")
        try:
            return check(_Parameters, {name: getattr(self, name) for name in names}, "parameters")
        except UserError as error:
            raise ValueError(f"{type(self).__name__}: {error}") from error

    @_usual_modes()
    def _train(self, images: Tensor, labels: Array | None, weights: Array | None, callback: Callback | None) -> None:
        parameters = self._parameters()
        random = check_random_state(self.random_state)
        seed = int(random.randint(2**31 - 1))
        rows, held_out = np.arange(len(images)), np.empty(0, np.int64)
        if parameters.validation_fraction:
            rows, held_out = train_test_split(
                rows,
                test_size=parameters.validation_fraction,
                random_state=random.randint(2**31 - 1),
                stratify=labels if isinstance(self, ClassifierMixin) else None,
            )
        target = torch.from_numpy(np.zeros(len(images)) if labels is None else labels).long()
        classes = 1 if labels is None else len(self.classes_)
        self.settings_ = self._settings(classes)
        try:
            where = devices.choose(str(self.device), self.threads)
            # A row of the history is logged where a phase of `experts` ends.
            log_every = max(1, min(parameters.evaluate_every, parameters.steps // 20))
            batch_size = min(parameters.batch_size, len(rows))
            warmup = WARMUP.get(self.settings_["family"], 0)
            changes = {"batch_size": batch_size, "log_every": log_every, "warmup": warmup}
            training = parameters.model_copy(update=changes)
            check(families()[self.settings_["family"]], self.settings_, "options")
            channels, height, width = images.shape[1:]
            self.seen_ = ((channels, height, width), classes)
            self._warn_of_size(height, width)
            model = self._fresh(seed).place(where)
            model.configure(training)
        except UserError as error:
            raise ValueError(f"{type(self).__name__}: {error}") from error
        own = None if weights is None else weights[rows]
        batches = Batches(_Given(images[rows].to(where), target[rows].to(where), own), training, seed, where)
        held = images[held_out], target[held_out], None if weights is None else weights[held_out]
        self.model_, self.history_, self.n_steps_ = model, list[dict[str, float]](), 0
        try:
            self._check(images[:1])
            self._take_steps(batches, held, callback, parameters)
        except Exception:
            del self.model_
            raise

    def _take_steps(
        self,
        batches: Batches,
        held_out: tuple[Tensor, Tensor, Array | None],
        callback: Callback | None,
        parameters: _Parameters,
    ) -> None:
        """Train the model. After Ctrl-C it has the weights so far, or the best ones if there is an early stop."""
        model, (images, labels, weights) = self.model_, held_out
        best, best_at, best_state = math.inf, 0, None
        model.train()
        try:
            for step, values in enumerate(take_steps(model, batches, range(parameters.steps)), 1):
                self.n_steps_ = step
                if step % parameters.evaluate_every and step != parameters.steps:
                    continue
                row = {"step": step, **{name: float(value) for name, value in values.items()}}
                self._check_finite(row)
                if len(images):
                    row["validation"] = float(np.average(self._errors(images, labels), weights=weights))
                    if row["validation"] < best:
                        best, best_at = row["validation"], step
                        best_state = {name: value.clone() for name, value in model.state_dict().items()}
                self.history_.append(row)
                if self.verbose:
                    _show(row, parameters.steps)
                if callback is not None:
                    callback(row)
                if len(images) and step - best_at >= parameters.patience * parameters.evaluate_every:
                    break
        finally:
            if self.verbose:
                print(file=sys.stderr)
            if best_state is not None:
                model.load_state_dict(best_state)
            model.eval()

    def _check_finite(self, row: Mapping[str, float]) -> None:
        if not math.isfinite(row["loss"]):
            raise ValueError(f"the loss is {row['loss']} at step {row['step']}; try a smaller learning_rate")
        if not all(each.isfinite().all() for each in self.model_.parameters()):
            raise ValueError(f"a weight is not finite after step {row['step']}; try a smaller learning_rate")

    def _warn_of_size(self, height: int, width: int) -> None:
        """Warn of large images before the network is built."""
        if height * width <= LARGEST**2:
            return
        with torch.device("meta"):
            millions = sum(each.numel() for each in self._fresh(0).parameters()) / 1e6
        narrower = " or set a smaller primary_types in options" if "primary_types" in self.settings_ else ""
        size = f"images of {height}x{width} make a network of {millions:.1f} million parameters"
        advice = f"shrink them to {LARGEST}x{LARGEST} or less{narrower}"
        warnings.warn(f"{size}; if that is too slow, {advice}", UserWarning, stacklevel=2)

    def _scores_classes(self) -> bool:
        """Whether the family has class scores. Such a family learns from labels."""
        name = self._family()
        return issubclass(families()[name], (ClassCapsules, ConvNetOptions)) or name == "matrixcaps"

    def _fresh(self, seed: int) -> Model:
        """Build the network for the images and the number of classes in `seen_`."""
        machine.has_compiler()
        shape, classes = self.seen_
        return fresh_model({"model": self.settings_}, shape, classes, seed)

    def _check(self, image: Tensor) -> None:
        """Refuse what the model cannot do after training."""

    def _errors(self, images: Tensor, labels: Tensor) -> Array:
        """Return the errors [N] whose mean an early stop makes small."""
        raise NotImplementedError

    @_usual_modes()
    def _evaluated(self, compute: Any, images: Tensor) -> Tensor:
        """Return `compute(model, images)` for all images, float32 [N, C, H, W], a few at a time."""
        model, was_training = self.model_, self.model_.training
        model.eval()
        where = _device(model)
        with torch.inference_mode():
            parts = [compute(model, as_float(some.to(where))).float().cpu() for some in images.split(AT_A_TIME)]
        model.train(was_training)
        return torch.cat(parts)

    # Pickles

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        if "model_" in state:
            weights = {name: value.cpu().contiguous() for name, value in self.model_.state_dict().items()}
            state = state | {"model_": safetensors.torch.save(weights)}
        return state

    @_usual_modes()
    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if isinstance(weights := state.get("model_"), bytes):
            model = self._fresh(seed=0)
            model.load_state_dict(safetensors.torch.load(weights))
            device = "auto" if str(self.device) == "cuda" else str(self.device)  # there may be no GPU here
            self.model_ = model.place(devices.choose(device, self.threads)).eval()


class CapsuleClassifier(ClassifierMixin, _Estimator):  # type: ignore[misc]
    """A network with one capsule per class.

    Args:
        model: a family with class scores: `supcaps` (dynamic routing), `discriminative` (learned routing), `matrixcaps`
            or `convnet`. None: the family that `routing` belongs to.
        routing: a routing algorithm, by name or as a mapping with its `name` and options. `dynamic`, `cosine` or
            `attention` for vectors; `em`, `similarity` or `connectionist` for matrix capsules. Or a class of yours that
            derives from `VoteRouting` or `PoseRouting`, also as `module:Class`. None: the family's default.
        options: further options of the family, as in `config/README.md`. By default `supcaps`, `discriminative` and
            `convnet` have a quarter of the paper's width.
        steps: training steps.
        batch_size: images in a training step.
        learning_rate: Adam's learning rate at step 0. It decays by 4 % every 2,000 steps.
        shift: shift training images by up to this many pixels along each axis, at random.
        validation_fraction: share of the training images that is held out for an early stop. 0: no early stop.
        evaluate_every: steps between two rows of `history_`, and between two evaluations of the held-out images.
        patience: stop after this many evaluations without a smaller error; keep the best weights.
        device: `auto`, `cpu` or `cuda`, as text or as a `torch.device`.
        threads: CPU threads; None: PyTorch's default.
        verbose: show the progress on standard error.
        random_state: seed of the initial weights, of batches and of the held-out images.

    Attributes:
        classes_: the labels, in order.
        model_: the trained network, a `torch.nn.Module` in evaluation mode.
        history_: a list of rows: `step`, `loss`, other scalars of the family, and `validation`, the held-out error in
            percent.
        n_steps_: steps taken.

    >>> import numpy as np
    >>> from recaps import CapsuleClassifier
    >>> bars = np.zeros((40, 20, 20), np.uint8)
    >>> bars[:20, 8:12, :], bars[20:, :, 8:12] = 255, 255
    >>> names = np.repeat(["flat", "tall"], 20)
    >>> small = {"conv_channels": 8, "primary_types": 2, "decoder": None}
    >>> found = CapsuleClassifier(options=small, steps=30, random_state=0).fit(bars, names)
    >>> found.predict(bars[[0, 39]]).tolist(), found.score(bars, names)
    (['flat', 'tall'], 1.0)
    """

    _default_model = "supcaps"

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None, *, callback: Callback | None = None
    ) -> Self:
        """Train the network.

        Weights of images act on how often training sees them, not on the loss, whose mean over a batch stays a plain
        one. An image of weight 2 is taken twice as often as one of weight 1, as if it were there twice. The gradients
        of the steps are those of the weighted loss in the mean, not in each step.

        Args:
            X: images [N, H, W], [N, H, W, C] or [N, features].
            y: labels [N], numbers or strings.
            sample_weight: weights [N], at least 0. The weights also count in the held-out error. An image of weight 0
                is left out.
            callback: called with each new row of `history_`.

        Raises:
            ValueError: invalid parameters, images, labels or weights, or a loss that is not finite.
        """
        images = self._images(X, fitting=True)
        some, weights = _weighted(X, sample_weight)
        labels = self._labels(y, len(images), some)
        if len(self.classes_) < 2:
            only = f"Classifier can't train when only one class is present: {self.classes_[0]!r}"
            raise ValueError(only + (" (sample_weight is 0 for the others)" if weights is not None else ""))
        if not self._scores_classes():
            raise ValueError(f"model={self._family()!r} learns without labels; use CapsuleEncoder")
        self._train(images[some], labels, weights, callback)
        return self

    def predict_proba(self, X: ArrayLike) -> Array:
        """Return the class scores of images, divided by their sum: [N, classes].

        The scores of capsules are their lengths or activations. Scores that are logits pass through a softmax.
        """
        scores = self._scores(X)
        positive = isinstance(self.model_, CapsuleNetwork) or self.settings_.get("loss") == "spread"
        probabilities = scores / scores.sum(1, keepdim=True) if positive else scores.softmax(1)
        return probabilities.numpy()

    def predict(self, X: ArrayLike) -> Array:
        """Return the label with the largest score for each image: [N]."""
        chosen = self._scores(X).argmax(1).numpy()
        return np.asarray(self.classes_[chosen])

    def _scores(self, X: ArrayLike) -> Tensor:
        check_is_fitted(self)
        images = self._images(X, fitting=False)
        return self._evaluated(lambda model, images: model.class_scores(images), images).double()

    def _errors(self, images: Tensor, labels: Tensor) -> Array:
        scores = self._evaluated(lambda model, images: model.class_scores(images), images)
        return 100.0 * (scores.argmax(1) != labels).numpy()


def _decodes(estimator: CapsuleEncoder) -> bool:
    """Whether the model of a fitted encoder has a decoder, and `transform` returns what it reads."""
    check_is_fitted(estimator)
    return estimator.latent in (None, "capsules", "mean") and _decoder(estimator.model_) is not None


@dataclass(eq=False, repr=False, kw_only=True)
class CapsuleEncoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, _Estimator):  # type: ignore[misc]
    """A network that describes images by capsules, mostly without labels.

    Args:
        model: a family: `sparsecaps`, `generative` (*Capsule Networks, a Probabilistic Perspective*), `scae`,
            `experts`, `rbm` or `vae`; or one that needs labels: `supcaps`, `discriminative`, `matrixcaps`.
        routing: as in `CapsuleClassifier`.
        options: as in `CapsuleClassifier`; for example `{"learning": "dense"}` for `sparsecaps`.
        latent: name of the array that `transform` returns, as in the model's `latents`. None: what the decoder reads;
            capsules times their mask, if there is one. Without a decoder, presences and poses.

    The other parameters and the attributes are those of `CapsuleClassifier`; `validation` in `history_` is the squared
    error of the reconstruction, summed over pixels.
    """

    _default_model = "sparsecaps"

    latent: str | None = None

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        callback: Callback | None = None,
    ) -> Self:
        """Train the network on images [N, H, W], [N, H, W, C] or [N, features].

        `sample_weight` and `callback` are those of `CapsuleClassifier.fit`. Labels [N] are used by the families that
        need them, and by two classifiers beside the family `scae`. The other families do not look at them.

        Raises:
            ValueError: invalid parameters, images, labels or weights, or a loss that is not finite.
        """
        images = self._images(X, fitting=True)
        some, weights = _weighted(X, sample_weight)
        if y is None and self._scores_classes():
            raise ValueError(f"model={self._family()!r} learns from labels; use fit(X, y)")
        looks = y is not None and (self._scores_classes() or self._family() == "scae")
        labels = self._labels(y, len(images), some) if looks else None
        self._train(images[some], labels, weights, callback)
        return self

    def transform(self, X: ArrayLike) -> Array:
        """Return the latents of images: float64 [N, features]."""
        check_is_fitted(self)
        return self._evaluated(self._code, self._images(X, fitting=False)).double().numpy()

    @available_if(_decodes)  # type: ignore[untyped-decorator]
    @_usual_modes()
    def inverse_transform(self, X: ArrayLike) -> Array:
        """Decode latents [N, features] of `transform` to images in the shape and range of the training images."""
        codes = check_array(X)
        if codes.shape[1] != self._n_features_out:
            raise ValueError(f"X has {codes.shape[1]} features, but transform returns {self._n_features_out}")
        decode = _decoder(self.model_)
        with torch.inference_mode():
            made = decode(torch.as_tensor(codes, dtype=torch.float32, device=_device(self.model_)))
        return self._pictures(made.float())

    def _code(self, model: Model, images: Tensor) -> Tensor:
        made = model.latents(images)
        if self.latent is not None:
            if self.latent not in made:
                raise ValueError(f"latent={self.latent!r}: the model has {', '.join(made)}{nearest(self.latent, made)}")
            return made[self.latent].flatten(1)
        if "mask" in made:
            return (made["capsules"] * made["mask"].unsqueeze(2)).flatten(1)
        names = ["capsules"] if "capsules" in made else [name for name in ("presence", "pose") if name in made]
        return torch.cat([made[name].flatten(1) for name in names], 1)

    def _check(self, image: Tensor) -> None:
        self._n_features_out = self._evaluated(self._code, image).shape[1]
        if self.validation_fraction:
            self._evaluated(self._reconstruction_error, image)

    def _errors(self, images: Tensor, labels: Tensor) -> Array:
        return self._evaluated(self._reconstruction_error, images).double().numpy()

    def _reconstruction_error(self, model: Model, images: Tensor) -> Tensor:
        made = model.latents(images)
        if "reconstruction_error" not in made:
            raise ValueError("the model reconstructs no images to measure for an early stop; set validation_fraction=0")
        return made["reconstruction_error"]


class _Given(Images):
    """Images [N, C, H, W] and labels [N] that are already tensors.

    With weights [N], each pass through the set takes an image N w_i / sum(w) times, rounded down or up in such a way
    that the shares of many passes are those of the weights. Equal weights change nothing.
    """

    def __init__(self, images: Tensor, labels: Tensor, weights: Array | None = None) -> None:
        self.images, self.labels = images, labels
        self.ends = None
        if weights is not None:
            self.versions = 2**31  # a pass is a version
            shares = np.cumsum(weights, dtype=np.float64)
            self.ends = torch.from_numpy(shares * (len(shares) / shares[-1])).to(images.device)

    def __call__(self, indices: Tensor) -> Batch:
        if self.ends is not None:
            place, turn = indices % len(self.ends), indices // len(self.ends)
            golden = (math.sqrt(5) - 1) / 2  # its multiples spread evenly between whole numbers
            indices = torch.searchsorted(self.ends, place + (0.5 + golden * turn.double()) % 1)
        return super().__call__(indices)


def _device(model: Model) -> torch.device:
    """Return where a model is. The family `pixels` has no parameters."""
    return next(model.parameters(), torch.empty(0)).device


def _decoder(model: Any) -> Any:
    """Return the function from codes [N, features] to images [N, C, H, W], or None."""
    if isinstance(model, CapsuleNetwork):
        return model.decoder
    if isinstance(model, VAE):
        return lambda code: model.logits(code[:, : model.options.latent_dim]).sigmoid()
    if model.options.family == "rbm":
        return lambda code: model.visible(code).unflatten(1, model.image_shape)
    if model.options.family == "experts":
        shape = (model.options.capsules, model.options.capsule_dim)
        return lambda code: model.pictures(model.decode(code.unflatten(1, shape)))
    return None


def _weighted(X: Any, sample_weight: Any) -> tuple[Any, Array | None]:
    """Return which images have a weight other than 0, and these weights."""
    if sample_weight is None:
        return slice(None), None
    weights = _check_sample_weight(sample_weight, X, ensure_non_negative=True)
    return np.flatnonzero(weights), weights[weights > 0]


def _laid_out(X: Array) -> Array:
    """Return images [N, H, W, C]: rows of features become squares, filled up with zeros."""
    if X.ndim == 2:
        side = math.isqrt(X.shape[1] - 1) + 1
        X = np.pad(X, ((0, 0), (0, side**2 - X.shape[1]))).reshape(len(X), side, side)
    return X if X.ndim == 4 else X[..., None]


def _border(size: Any) -> tuple[int, int, int, int]:
    """Return the zeros left, right, above and below images of a size (H, W) that is too small."""
    height, width = (max(SMALLEST - side, 0) for side in size)
    return width // 2, width - width // 2, height // 2, height - height // 2


def _show(row: Mapping[str, float], steps: int) -> None:
    """Write a line over the last one."""
    done = round(20 * row["step"] / steps)
    values = " ".join(f"{name} {value:.4g}" for name, value in row.items() if name != "step")
    bar = "#" * done + "." * (20 - done)
    print(f"\r[{bar}] {row['step']:.0f}/{steps} {values}", end="", file=sys.stderr, flush=True)
