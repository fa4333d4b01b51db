"""Attention distance: how far apart a token and the tokens it attends to are, on average, for each head.

Figure 7 (right) of arXiv 2010.11929; the transformer's counterpart of receptive field size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import ShapeError
from vitrail.inspection.trace import iter_attention
from vitrail.model.vit import VisionTransformer
from vitrail.tokens import Layout


class HeadStats(NamedTuple):
    """Mean attention distance in pixels and mean entropy in bits, for each block and head."""

    distance: Float[Tensor, "L H"]
    entropy: Float[Tensor, "L H"]


def cell_distances(grid: tuple[int, ...], cell: tuple[float, ...]) -> Float[Tensor, "Y*X Y*X"]:
    """The distances in pixels between the centres of all cells."""
    rows, columns = torch.meshgrid(
        *(torch.arange(num) * side for num, side in zip(grid, cell, strict=True)), indexing="ij"
    )
    centres = torch.stack([rows.flatten(), columns.flatten()], dim=1).double()
    return torch.cdist(centres, centres, compute_mode="donot_use_mm_for_euclid_dist")


def mean_distance(weights: Float[Tensor, "B H N N"], layout: Layout, cell: tuple[float, ...]) -> Float[Tensor, "B H"]:
    """The attention-weighted distance between cells; attention to prefix tokens has no distance and is left out."""
    if weights.shape[-1] != layout.num_tokens:
        raise ShapeError(
            "attention distance needs every cell of the grid.",
            got=f"the attention of {weights.shape[-1]} tokens, not {layout.num_tokens}.",
            hint="all tokens of the image, not a subset.",
        )
    among = weights[..., layout.prefix :, layout.prefix :].double()
    among = among / among.sum(dim=-1, keepdim=True).clamp_min(1e-12)
    return (among * cell_distances(layout.grid, cell).to(among.device)).sum(dim=-1).mean(dim=-1)


def entropy(weights: Float[Tensor, "B H N N"]) -> Float[Tensor, "B H"]:
    """The entropy of the attention in bits: 0 if it goes to one token, log2(N) if to all equally."""
    weights = weights.double()
    return -(weights * weights.clamp_min(1e-30).log2()).sum(dim=-1).mean(dim=-1)


def measure_heads(model: VisionTransformer, batches: Iterable[Float[Tensor, "B C Y X"]]) -> HeadStats:
    """Mean distance and entropy of every head over many images."""
    total, num = torch.zeros(2, len(model.blocks), model.spec.heads, dtype=torch.float64), 0
    for images in batches:
        for image in torch.split(images, 1):  # the attention matrices of one large image can fill memory
            total += torch.stack(list(_measure_image(model, image)), dim=1)
            num += 1
    return HeadStats(*(total / max(1, num)))


def _measure_image(model: VisionTransformer, images: Float[Tensor, "1 C Y X"]) -> Iterator[Float[Tensor, "2 H"]]:
    layout = model.spec.layout
    cell = tuple(side / cells for side, cells in zip(images.shape[2:], layout.grid, strict=True))
    for weights in iter_attention(model, images):
        yield torch.stack([mean_distance(weights, layout, cell)[0], entropy(weights)[0]]).cpu()
