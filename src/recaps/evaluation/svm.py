"""A support vector machine whose kernel values come from matrix products."""

from __future__ import annotations

from itertools import combinations
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.svm import SVC

#: Images whose kernel values are in memory at once in `predict`.
CHUNK = 500


class PairwiseSVC(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Scikit-learn's `SVC(kernel="rbf")` with the same predictions, faster on tens of thousands of images.

    `SVC` computes its kernel value by value. Here the kernel values of two classes are one matrix product. `SVC` solves
    each pair of classes with them. As in `SVC`, the pairs vote, and a tie goes to the first class.

    With k classes of n images each, `fit` needs about 8 (k + 8) n^2 bytes.

    Args:
        C: as in `SVC`.
        gamma: a number, or `scale` for one over D times the variance of the features (1 if they do not vary).
    """

    def __init__(self, C: float = 1.0, gamma: float | Literal["scale"] = "scale") -> None:
        self.C = C
        self.gamma = gamma

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Self:
        """Fit one classifier to each pair of classes: features [N, D], labels [N].

        Raises:
            ValueError: the labels are of a single class.
        """
        values, labels = np.asarray(X, np.float64), np.asarray(y)
        self.gamma_ = 1 / (values.shape[1] * values.var() or 1) if self.gamma == "scale" else self.gamma
        self.classes_ = np.unique(labels)
        if len(self.classes_) < 2:
            raise ValueError(f"an SVM needs at least two classes, but all labels are {self.classes_[0]}")
        self.pairs_ = np.array(list(combinations(range(len(self.classes_)), 2)))
        of_class = [np.flatnonzero(labels == label) for label in self.classes_]
        within = [rbf_kernel(values[rows], gamma=self.gamma_) for rows in of_class]
        coefficients = np.zeros((len(values), len(self.pairs_)))
        self.intercepts_ = np.zeros(len(self.pairs_))
        for number, (first, second) in enumerate(self.pairs_):
            rows = np.concatenate([of_class[first], of_class[second]])
            between = rbf_kernel(values[of_class[first]], values[of_class[second]], gamma=self.gamma_)
            kernel = np.block([[within[first], between], [between.T, within[second]]])
            solver = SVC(kernel="precomputed", C=self.C, cache_size=1000)
            solver.fit(kernel, labels[rows])
            coefficients[rows[solver.support_], number] = solver.dual_coef_[0]
            self.intercepts_[number] = solver.intercept_[0]
        used = np.flatnonzero(coefficients.any(1))
        self.support_vectors_, self.coefficients_ = values[used], coefficients[used]
        return self

    def predict(self, X: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the class with the most votes for each row of features [N, D]."""
        values = np.asarray(X, np.float64)
        votes = np.zeros((len(values), len(self.classes_)), np.int64)
        for start in range(0, len(values), CHUNK):
            rows = np.arange(start, min(start + CHUNK, len(values)))
            kernel = rbf_kernel(values[rows], self.support_vectors_, gamma=self.gamma_)
            # A positive decision is a vote for the second class of a pair.
            winners = np.where(kernel @ self.coefficients_ + self.intercepts_ > 0, self.pairs_[:, 1], self.pairs_[:, 0])
            np.add.at(votes, (rows[:, None], winners), 1)
        return np.asarray(self.classes_[votes.argmax(1)])
