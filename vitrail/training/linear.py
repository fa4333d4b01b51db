"""Logistic regression on features: its strength by cross-validation, its scaling folded into the weights."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.chance import chance
from vitrail.training.view import View

STRENGTHS = tuple(10.0 ** (power / 2) for power in range(-7, 2))  # scikit-learn's C; smaller is stronger
MAX_STEPS = 300


class Linear(NamedTuple):
    """A linear classifier of features as they are."""

    weight: Float[Tensor, "K D"]
    bias: Float[Tensor, " K"]

    def __call__(self, features: Float[Tensor, "n D"]) -> Float[Tensor, "n K"]:
        return features @ self.weight.T + self.bias


class Choice(NamedTuple):
    """The strength that cross-validation chose, and each picture's logits from folds without it."""

    strength: float
    logits: Float[Tensor, "n K"]
    folds: int


def fit_linear(
    views: Float[Tensor, "V n D"], labels: Int64[Tensor, " n"] | Float[Tensor, "n K"], *, strength: float, several: bool
) -> Linear:
    """The classifier of all views of all pictures; features are scaled for the fit, and the scaling folded in."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier

    mean, deviation = views[0].mean(dim=0), views[0].std(dim=0).clamp_min(1e-6)
    rows = ((views - mean) / deviation).flatten(0, 1).double().numpy()
    targets = np.concatenate([labels.numpy()] * len(views))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an early end of a weak fit, and constant labels, are fine here
        one = LogisticRegression(C=strength, max_iter=MAX_STEPS)
        if several:
            fitted = OneVsRestClassifier(one).fit(rows, targets)
            weights, biases = zip(*[_of(each, rows.shape[1]) for each in fitted.estimators_], strict=True)
            weight, bias = np.stack(weights), np.array(biases)
        else:
            fitted = one.fit(rows, targets)
            weight, bias = fitted.coef_, fitted.intercept_
            if len(fitted.classes_) == 2:  # scikit-learn keeps one row for two classes
                weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
            weight, bias = _spread(weight, bias, fitted.classes_, targets)
    scaled = torch.from_numpy(weight) / deviation
    return Linear(scaled.float(), (torch.from_numpy(bias) - scaled @ mean.double()).float())


def _of(one: Any, width: int) -> tuple[NDArray[np.float64], float]:
    """A yes-or-no classifier; a class that never, or always, occurs has a constant one."""
    if hasattr(one, "coef_"):
        return one.coef_[0], float(one.intercept_[0])
    return np.zeros(width), 10.0 if one.predict(np.zeros((1, width)))[0] else -10.0


def _spread(
    weight: NDArray[np.float64], bias: NDArray[np.float64], present: NDArray[np.int64], targets: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rows for all classes up to the last; one that has no pictures is never chosen."""
    num = int(targets.max()) + 1
    all_weights, all_biases = np.zeros((num, weight.shape[1])), np.full(num, -20.0)
    all_weights[present], all_biases[present] = weight, bias
    return all_weights, all_biases


def cross_validate(
    views: Float[Tensor, "V n D"],
    labels: Int64[Tensor, " n"] | Float[Tensor, "n K"],
    *,
    folds: int,
    several: bool,
    seed: int,
    view: View,
) -> Choice:
    """Predict each picture from folds without it, at each strength; the most accurate wins, the stronger in a tie."""
    fold_of = _folds(labels, folds, several=several, seed=seed)
    folds = int(fold_of.max()) + 1
    best: tuple[float, Choice] | None = None
    for number, strength in enumerate(STRENGTHS):
        logits: Tensor | None = None
        for fold in range(folds):
            held = torch.from_numpy(fold_of == fold)
            linear = fit_linear(views[:, ~held], labels[~held], strength=strength, several=several)
            rows = linear(views[0][held])
            num_classes = labels.shape[1] if several else int(labels.max()) + 1
            logits = torch.full((len(labels), num_classes), -20.0) if logits is None else logits
            logits[held, : rows.shape[1]] = rows
        assert logits is not None
        right = (
            ((logits > 0) == (labels > 0.5)).float().mean() if several else (logits.argmax(1) == labels).float().mean()
        )
        view.progress("Choosing the strength", number + 1, len(STRENGTHS))
        if best is None or right.item() > best[0]:
            best = right.item(), Choice(strength, logits, folds)
    assert best is not None
    return best[1]


def _folds(labels: Tensor, folds: int, *, several: bool, seed: int) -> NDArray[np.int64]:
    """A fold for each picture, every class spread evenly over them; fewer folds than asked where classes are small."""
    random = chance("order", seed=seed, epoch=1)
    num = len(labels)
    order = random.permutation(num)
    if several:
        fold_of = np.empty(num, dtype=np.int64)
        fold_of[order] = np.arange(num) % min(folds, num)
        return fold_of
    numbers = labels.numpy()
    smallest = np.bincount(numbers)[np.unique(numbers)].min()
    folds = max(2, min(folds, int(smallest)))
    fold_of = np.empty(num, dtype=np.int64)
    shift = 0
    for label in np.unique(numbers):
        members = order[numbers[order] == label]
        fold_of[members] = (np.arange(len(members)) + shift) % folds
        shift += len(members)
    return fold_of
