"""Linear models on features: C by cross-validation, feature scaling folded into the weights.

Logistic regression for labels, ridge regression for numbers (float labels of one dimension).
"""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from vitrail.contract import Classifier
from vitrail.data.rng import make_rng
from vitrail.objective.classify import calibrated_losses
from vitrail.training.view import View

C_VALUES = tuple(10.0 ** (power / 2) for power in range(-8, 3))  # smaller is stronger regularisation
MAX_ITERATIONS = 300
MISSING_CLASS_LOGIT = -20.0  # of a class without images


class Linear(NamedTuple):
    """A linear classifier of unscaled features."""

    weight: Float[Tensor, "K D"]
    bias: Float[Tensor, " K"]

    def __call__(self, features: Float[Tensor, "n D"]) -> Float[Tensor, "n K"]:
        return features @ self.weight.T + self.bias


class CrossValidation(NamedTuple):
    """The C that cross-validation chose, and out-of-fold logits for each image."""

    c_value: float
    logits: Float[Tensor, "n K"]
    folds: int


def fit_linear(
    views: Float[Tensor, "V n D"],
    labels: Int64[Tensor, " n"] | Float[Tensor, "n K"],
    *,
    c_value: float,
    multi_label: bool,
) -> Linear:
    """Fit a linear model on all views of all images; the features are scaled for the fit."""
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.multiclass import OneVsRestClassifier

    mean, std = views[0].mean(dim=0), views[0].std(dim=0).clamp_min(1e-6)
    rows = ((views - mean) / std).flatten(0, 1).double().numpy()
    targets = np.concatenate([labels.numpy()] * len(views))
    if is_number(labels):
        # A squared loss curves four times as much as a logistic one: the same C shrinks the weights alike.
        ridge = Ridge(alpha=4.0 / c_value).fit(rows, targets)
        weight, bias = ridge.coef_[None], np.array([ridge.intercept_])
        scaled = torch.from_numpy(weight) / std
        return Linear(scaled.float(), (torch.from_numpy(bias) - scaled @ mean.double()).float())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no convergence at weak regularisation, and constant labels, are fine
        estimator = LogisticRegression(C=c_value, max_iter=MAX_ITERATIONS)
        if multi_label:
            fitted = OneVsRestClassifier(estimator).fit(rows, targets)
            weights, biases = zip(
                *[_binary_classifier(each, rows.shape[1]) for each in fitted.estimators_], strict=True
            )
            weight, bias = np.stack(weights), np.array(biases)
        else:
            fitted = estimator.fit(rows, targets)
            weight, bias = fitted.coef_, fitted.intercept_
            if len(fitted.classes_) == 2:  # scikit-learn has a single row for two classes
                weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
            weight, bias = _expand_classes(weight, bias, fitted.classes_, targets)
    scaled = torch.from_numpy(weight) / std
    return Linear(scaled.float(), (torch.from_numpy(bias) - scaled @ mean.double()).float())


def is_number(labels: Tensor) -> bool:
    """Whether labels are numbers to predict, not classes."""
    return labels.ndim == 1 and labels.is_floating_point()


@torch.no_grad()
def put_head(model: Classifier, linear: Linear) -> None:
    """Copy a linear model into the heads of a model; a class beyond those that it was fitted on is never predicted."""
    for head in model.heads:
        for name, parameter in head.named_parameters():
            is_weight = name.endswith("weight")
            value = linear.weight if is_weight else linear.bias
            parameter.fill_(0.0 if is_weight else MISSING_CLASS_LOGIT)
            parameter[: len(value)] = value.view(len(value), *parameter.shape[1:])


def _binary_classifier(estimator: Any, width: int) -> tuple[NDArray[np.float64], float]:
    """Weights and bias of a binary classifier; constant for a class that never, or always, occurs."""
    if hasattr(estimator, "coef_"):
        return estimator.coef_[0], float(estimator.intercept_[0])
    return np.zeros(width), 10.0 if estimator.predict(np.zeros((1, width)))[0] else -10.0


def _expand_classes(
    weight: NDArray[np.float64], bias: NDArray[np.float64], present: NDArray[np.int64], targets: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Add rows for missing classes, which are then never predicted."""
    num = int(targets.max()) + 1
    all_weights, all_biases = np.zeros((num, weight.shape[1])), np.full(num, MISSING_CLASS_LOGIT)
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
) -> CrossValidation:
    """Cross-validate ever weaker regularisation until the loss stops improving, and choose C.

    The smallest C whose loss is within one standard error of the lowest wins, as in Breiman et al. (1984): on a few
    hundred images, differences in accuracy are mostly noise.
    """
    fold_of = _assign_folds(labels, folds, multi_label=multi_label, seed=seed)
    folds = int(fold_of.max()) + 1
    tried: list[tuple[float, float, CrossValidation]] = []  # the mean loss, its standard error
    for number, c_value in enumerate(C_VALUES):
        logits = _predict_out_of_fold(views, labels, fold_of, c_value, multi_label=multi_label)
        if is_number(labels):
            losses = (logits[:, 0] - labels).double().square()
        else:
            losses = calibrated_losses(logits, labels, multi_label=multi_label)
        error = losses.std().item() / math.sqrt(len(losses))
        tried.append((losses.mean().item(), error, CrossValidation(c_value, logits, folds)))
        view.progress("Choosing C", number + 1, len(C_VALUES))
        if number >= 2 and tried[-1][0] > tried[-2][0] > tried[-3][0]:
            break
    lowest, error, _ = min(tried, key=lambda each: each[0])
    return next(choice for loss, _, choice in tried if loss <= lowest + error)


def _predict_out_of_fold(
    views: Float[Tensor, "V n D"],
    labels: Int64[Tensor, " n"] | Float[Tensor, "n K"],
    fold_of: NDArray[np.int64],
    c_value: float,
    *,
    multi_label: bool,
) -> Float[Tensor, "n K"]:
    """Predict each image with a classifier fitted on the other folds."""
    num_classes = labels.shape[1] if multi_label else 1 if is_number(labels) else int(labels.max()) + 1
    logits = torch.full((len(labels), num_classes), MISSING_CLASS_LOGIT)
    for fold in range(int(fold_of.max()) + 1):
        held_out = torch.from_numpy(fold_of == fold)
        rows = fit_linear(views[:, ~held_out], labels[~held_out], c_value=c_value, multi_label=multi_label)(
            views[0][held_out]
        )
        logits[held_out, : rows.shape[1]] = rows
    return logits


def _assign_folds(labels: Tensor, folds: int, *, multi_label: bool, seed: int) -> NDArray[np.int64]:
    """Assign stratified folds; fewer than `folds` if a class has too few images."""
    rng = make_rng("order", seed=seed, epoch=1)
    num = len(labels)
    order = rng.permutation(num)
    if multi_label or is_number(labels):
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
