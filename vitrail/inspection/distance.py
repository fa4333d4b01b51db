"""How far attention reaches: the mean distance between a token and what it looks at, head by head.

Figure 7 (right) of arXiv 2010.11929, the transformer's counterpart of a receptive field's size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.inspection.trace import attention
from vitrail.tokens import Layout


class Reach(NamedTuple):
    """The mean distance in pixels and the mean entropy in bits, layer by layer, head by head."""

    distance: Float[Tensor, "L H"]
    entropy: Float[Tensor, "L H"]


def cell_distances(grid: tuple[int, ...], cell: tuple[float, ...]) -> Float[Tensor, "Y*X Y*X"]:
    """The distances in pixels between the centres of all cells."""
    rows, columns = torch.meshgrid(
        *(torch.arange(num) * side for num, side in zip(grid, cell, strict=True)), indexing="ij"
    )
    places = torch.stack([rows.flatten(), columns.flatten()], dim=1).double()
    return torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist")


def mean_distance(weights: Float[Tensor, "B H N N"], layout: Layout, cell: tuple[float, ...]) -> Float[Tensor, "B H"]:
    """The distance of what the cells look at, weighted by how much; what goes to prefix tokens has no distance."""
    among = weights[..., layout.prefix :, layout.prefix :].double()
    among = among / among.sum(dim=-1, keepdim=True).clamp_min(1e-12)
    return (among * cell_distances(layout.grid, cell).to(among.device)).sum(dim=-1).mean(dim=-1)


def entropy(weights: Float[Tensor, "B H N N"]) -> Float[Tensor, "B H"]:
    """How many bits it takes to say what a token looks at: 0 for one token, log2(N) for all alike."""
    weights = weights.double()
    return -(weights * weights.clamp_min(1e-30).log2()).sum(dim=-1).mean(dim=-1)


def reach(model: Any, batches: Iterable[Float[Tensor, "B C Y X"]]) -> Reach:
    """Mean distance and entropy of every head over many pictures."""
    total, num = torch.zeros(2, len(model.blocks), model.spec.heads, dtype=torch.float64), 0
    for images in batches:
        for one in torch.split(images, 1):  # the matrices of a large picture fill the memory by themselves
            total += torch.stack(list(_of_picture(model, one)), dim=1)
            num += 1
    return Reach(*(total / max(1, num)))


def _of_picture(model: Any, images: Float[Tensor, "1 C Y X"]) -> Iterator[Float[Tensor, "2 H"]]:
    layout = model.spec.layout
    cell = tuple(side / cells for side, cells in zip(images.shape[2:], layout.grid, strict=True))
    for weights in attention(model, images):
        yield torch.stack([mean_distance(weights, layout, cell)[0], entropy(weights)[0]]).cpu()
