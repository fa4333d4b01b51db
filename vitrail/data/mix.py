"""Mixup (arXiv 1710.09412) of neighbouring samples and CutMix (arXiv 1905.04899) of neighbouring images.

Positions 0 and 1 of a batch are a pair, 2 and 3, and so on. Each rank has whole pairs, so the result is the same for
any number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from vitrail.batch import Fields
from vitrail.data.augment import Augment
from vitrail.data.rng import make_rng


def one_hot(labels: Int64[Tensor, " B"], num_classes: int) -> Float[Tensor, "B K"]:
    """Class numbers as one-hot targets."""
    return torch.nn.functional.one_hot(labels, num_classes).float()


def mix_fields(
    fields: Fields,
    name: str,
    *,
    mixup: float,
    cutmix: float = 0.0,
    num_classes: int,
    multi_label: bool,
    seed: int,
    epoch: int,
    positions: Sequence[int],
) -> Fields:
    """The field `name` and the labels, mixed in pairs; class numbers become probabilities."""
    labels = fields["label"]
    is_number = labels.ndim == 1 and labels.is_floating_point()
    soft = multi_label or labels.ndim == 2
    targets = labels[:, None] if is_number else labels if soft else one_hot(labels, num_classes)
    augment = Augment(mixup=mixup, cutmix=cutmix)
    inputs, mixed = mix(fields[name], targets, augment, seed=seed, epoch=epoch, positions=positions)
    return {name: inputs, "label": mixed[:, 0] if is_number else mixed}


def mix(
    images: Float[Tensor, "B C Y X"],
    targets: Float[Tensor, "B K"],
    augment: Augment,
    *,
    seed: int,
    epoch: int,
    positions: Sequence[int],
) -> tuple[Float[Tensor, "B C Y X"], Float[Tensor, "B K"]]:
    """The mixed images and targets; each pair has its own random weight.

    `positions` are those of the images in the epoch. An image without its partner is not mixed.
    """
    mixed, weights = images.clone(), torch.ones(len(images))
    partners = torch.arange(len(images))
    for row in range(len(images) - 1):
        if positions[row] % 2 or positions[row + 1] != positions[row] + 1:
            continue
        rng = make_rng("mix", seed=seed, epoch=epoch, index=positions[row] // 2)
        cut = augment.cutmix > 0 and (augment.mixup == 0 or rng.random() < 0.5)
        alpha = augment.cutmix if cut else augment.mixup
        weight = rng.beta(alpha, alpha)
        one, other = images[row], images[row + 1]
        if cut:
            box, weight = _random_box(weight, images.shape[2], images.shape[3], rng)
            mixed[row][:, *box], mixed[row + 1][:, *box] = other[:, *box], one[:, *box]
        else:
            torch.lerp(other, one, weight, out=mixed[row])
            torch.lerp(one, other, weight, out=mixed[row + 1])
        weights[row : row + 2] = weight
        partners[row], partners[row + 1] = row + 1, row
    column = weights[:, None]
    return mixed, targets * column + targets[partners] * (1 - column)


def _random_box(weight: float, rows: int, columns: int, rng: np.random.Generator) -> tuple[tuple[slice, slice], float]:
    """The box to exchange, and the fraction of the image outside it."""
    side = math.sqrt(1.0 - weight)
    top, left = int(rng.integers(rows)), int(rng.integers(columns))
    height, width = round(rows * side), round(columns * side)
    above, below = max(0, top - height // 2), min(rows, top + (height + 1) // 2)
    before, after = max(0, left - width // 2), min(columns, left + (width + 1) // 2)
    weight = 1.0 - (below - above) * (after - before) / (rows * columns)
    return (slice(above, below), slice(before, after)), weight
