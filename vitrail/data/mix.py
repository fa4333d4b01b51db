"""Mixup (arXiv 1710.09412) and CutMix (arXiv 1905.04899): each picture with the neighbour that it is paired with.

Neighbours are the places 0 and 1, 2 and 3, and so on of a batch. Ranks hold whole pairs, so the mixture is the same
for any number of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from vitrail.data.augment import Augment
from vitrail.data.rng import make_rng


def targets_of(labels: Int64[Tensor, " B"], num_classes: int) -> Float[Tensor, "B K"]:
    """Class numbers as shares that sum to one."""
    return torch.nn.functional.one_hot(labels, num_classes).float()


def mix(
    images: Float[Tensor, "B C Y X"],
    targets: Float[Tensor, "B K"],
    augment: Augment,
    *,
    seed: int,
    epoch: int,
    places: Sequence[int],
) -> tuple[Float[Tensor, "B C Y X"], Float[Tensor, "B K"]]:
    """Pictures and targets, each pair mixed in its own way.

    `places` are those of the pictures in the epoch. A picture whose partner is missing stays as it is.
    """
    mixed, shares = images.clone(), torch.ones(len(images))
    partners = torch.arange(len(images))
    for place in range(len(images) - 1):
        if places[place] % 2 or places[place + 1] != places[place] + 1:
            continue
        random = make_rng("mix", seed=seed, epoch=epoch, index=places[place] // 2)
        cut = augment.cutmix > 0 and (augment.mixup == 0 or random.random() < 0.5)
        alpha = augment.cutmix if cut else augment.mixup
        share = random.beta(alpha, alpha)
        one, other = images[place], images[place + 1]
        if cut:
            box, share = _box(share, images.shape[2], images.shape[3], random)
            mixed[place][:, *box], mixed[place + 1][:, *box] = other[:, *box], one[:, *box]
        else:
            torch.lerp(other, one, share, out=mixed[place])
            torch.lerp(one, other, share, out=mixed[place + 1])
        shares[place : place + 2] = share
        partners[place], partners[place + 1] = place + 1, place
    weight = shares[:, None]
    return mixed, targets * weight + targets[partners] * (1 - weight)


def _box(share: float, rows: int, columns: int, random: np.random.Generator) -> tuple[tuple[slice, slice], float]:
    """The part that is exchanged, and the share that is then left of a picture."""
    side = math.sqrt(1.0 - share)
    top, left = int(random.integers(rows)), int(random.integers(columns))
    height, width = round(rows * side), round(columns * side)
    above, below = max(0, top - height // 2), min(rows, top + (height + 1) // 2)
    before, after = max(0, left - width // 2), min(columns, left + (width + 1) // 2)
    share = 1.0 - (below - above) * (after - before) / (rows * columns)
    return (slice(above, below), slice(before, after)), share
