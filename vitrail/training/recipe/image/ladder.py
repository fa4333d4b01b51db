"""Linear probes on a ladder of subsets: the features are computed once, so that a subset costs only its fit."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from vitrail.data.rng import make_rng
from vitrail.metric.scaling import MIN_LADDER, Scaling, describe_scaling, ladder_sizes, nested_order
from vitrail.training.recipe.image.linear import cross_validate, fit_linear
from vitrail.training.view import SilentView

FOLDS = 3  # of the cross-validation that chooses C within each subset
HELD_OUT = 5  # a fifth of the images is held out for each seed of the ladder within a run


def probe_ladder(
    views: Float[Tensor, "V n D"],
    labels: Int64[Tensor, " n"],
    test: tuple[Float[Tensor, "m D"], Int64[Tensor, " m"]],
    *,
    seeds: int,
    progress: Callable[[int, int], None],
) -> dict[int, list[float]]:
    """The test accuracies by size, with C chosen within each subset; all images are one subset, whatever the seed."""
    sizes = ladder_sizes(len(labels), len(np.unique(labels.numpy())))
    orders = [nested_order(labels.numpy(), make_rng("order", seed=seed, epoch=3)) for seed in range(seeds)]
    steps = [(size, seed) for size in sizes for seed in range(1 if size == len(labels) else seeds)]
    accuracies: dict[int, list[float]] = {size: [] for size in sizes}
    for number, (size, seed) in enumerate(steps):
        progress(number, len(steps))
        rows = torch.from_numpy(orders[seed][:size].copy())
        chosen, chosen_labels = views[:, rows], labels[rows]
        selection = cross_validate(chosen, chosen_labels, folds=FOLDS, multi_label=False, seed=seed, view=SilentView())
        accuracies[size].append(accuracy_of(chosen, chosen_labels, test, selection.c_value))
    return accuracies


def held_out_ladder(
    views: Float[Tensor, "V n D"], labels: Int64[Tensor, " n"], *, c_value: float, seconds: float
) -> Scaling | None:
    """The ladder without further images: a fifth of them is held out, another one for each seed.

    One C serves all sizes. None for too few images, or if it takes longer than `seconds`.
    """
    began = time.monotonic()
    num_train = len(labels) - len(labels) // HELD_OUT
    sizes = ladder_sizes(num_train, len(np.unique(labels.numpy())))
    if len(sizes) < MIN_LADDER:
        return None
    order = nested_order(labels.numpy(), make_rng("order", seed=0, epoch=3))
    accuracies: dict[int, list[float]] = {size: [] for size in sizes}
    for seed in range(HELD_OUT):
        held_out = torch.from_numpy(order[seed::HELD_OUT][: len(labels) // HELD_OUT].copy())
        kept = torch.ones(len(labels), dtype=torch.bool)
        kept[held_out] = False
        train = kept.nonzero()[:, 0]
        within = nested_order(labels[train].numpy(), make_rng("order", seed=seed, epoch=4))
        for size in sizes:
            if time.monotonic() - began > seconds:
                return None
            rows = train[torch.from_numpy(within[:size].copy())]
            test = views[0][held_out], labels[held_out]
            accuracies[size].append(accuracy_of(views[:, rows], labels[rows], test, c_value))
    return describe_scaling(accuracies, len(labels) // HELD_OUT)


def accuracy_of(
    views: Float[Tensor, "V n D"],
    labels: Int64[Tensor, " n"],
    test: tuple[Float[Tensor, "m D"], Int64[Tensor, " m"]],
    c_value: float,
) -> float:
    """The test accuracy of a linear model fitted on these images."""
    linear = fit_linear(views, labels, c_value=c_value, multi_label=False)
    return float((linear(test[0]).argmax(dim=1) == test[1]).double().mean())
