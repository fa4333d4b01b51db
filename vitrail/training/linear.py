"""Logistic regression on features: its strength by cross-validation, its scaling folded into the weights."""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.rng import make_rng
from vitrail.training.evaluation import calibrated_losses
from vitrail.training.view import View

STRENGTHS = tuple(10.0 ** (power / 2) for power in range(-8, 3))  # scikit-learn's C; smaller is stronger
MAX_STEPS = 300
NEVER = -20.0  # the logit of a class that there are no pictures of


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
    views: Float[Tensor, "V n D"],
    labels: Int64[Tensor, " n"] | Float[Tensor, "n K"],
    *,
    strength: float,
    multi_label: bool,
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
        if multi_label:
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
    all_weights, all_biases = np.zeros((num, weight.shape[1])), np.full(num, NEVER)
    all_weights[present], all_biases[present] = weight, bias
    return all_weights, all_biases


def cross_validate(
    views: Float[Tensor, "V n D"],
    labels: Int64[Tensor, " n"] | Float[Tensor, "n K"],
    *,
    folds: int,
    multi_label: bool,
    seed: int,
    view: View,
) -> Choice:
    """Predict each picture from folds without it, at ever weaker strengths, until that no longer helps.

    The strongest whose loss is within one standard error of the lowest is chosen, as Breiman et al. did for trees
    (1984): accuracies of a few hundred pictures tell strengths apart by chance more than by merit.
    """
    fold_of = _folds(labels, folds, multi_label=multi_label, seed=seed)
    folds = int(fold_of.max()) + 1
    tried: list[tuple[float, float, Choice]] = []  # the mean loss, its standard error
    for number, strength in enumerate(STRENGTHS):
        logits = _out_of_fold(views, labels, fold_of, strength, multi_label=multi_label)
        losses = calibrated_losses(logits, labels, multi_label=multi_label)
        error = losses.std().item() / math.sqrt(len(losses))
        tried.append((losses.mean().item(), error, Choice(strength, logits, folds)))
        view.progress("Choosing the strength", number + 1, len(STRENGTHS))
        if number >= 2 and tried[-1][0] > tried[-2][0] > tried[-3][0]:
            break
    lowest, error, _ = min(tried, key=lambda each: each[0])
    return next(choice for loss, _, choice in tried if loss <= lowest + error)


def _out_of_fold(
    views: Float[Tensor, "V n D"],
    labels: Int64[Tensor, " n"] | Float[Tensor, "n K"],
    fold_of: NDArray[np.int64],
    strength: float,
    *,
    multi_label: bool,
) -> Float[Tensor, "n K"]:
    """The logits of each picture from the folds without it."""
    num_classes = labels.shape[1] if multi_label else int(labels.max()) + 1
    logits = torch.full((len(labels), num_classes), NEVER)
    for fold in range(int(fold_of.max()) + 1):
        held = torch.from_numpy(fold_of == fold)
        rows = fit_linear(views[:, ~held], labels[~held], strength=strength, multi_label=multi_label)(views[0][held])
        logits[held, : rows.shape[1]] = rows
    return logits


def _folds(labels: Tensor, folds: int, *, multi_label: bool, seed: int) -> NDArray[np.int64]:
    """A fold for each picture, every class spread evenly over them; fewer folds than asked where classes are small."""
    random = make_rng("order", seed=seed, epoch=1)
    num = len(labels)
    order = random.permutation(num)
    if multi_label:
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
