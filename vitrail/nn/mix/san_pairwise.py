"""Pairwise self-attention (Zhao et al., arXiv 2004.13621, equation 2), with the relation that the paper found best.

The weights of a pair of cells are softmax(gamma([phi(x_i) - psi(x_j), p_i - p_j])) over the window, where gamma is two
linear layers with a ReLU between them and p a linear map of the coordinates, from -1 to 1. `share` channels have the
same weights. The paper pads maps by reflection; here a cell beyond the map is not seen. Stride 2 is average pooling.
"""

from __future__ import annotations

from typing import Literal

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.conv import conv_flops
from vitrail.nn.map_attention import aggregate, on_map, window_offsets
from vitrail.nn.relation import RelationAttention, RelationSpec
from vitrail.nn.window import neighbours


class Spec(RelationSpec):
    """The settings of both forms of self-attention."""

    name: Literal["san_pairwise"] = "san_pairwise"


class Layer(RelationAttention):
    """Weights from differences between cells."""

    def __init__(self, spec: Spec, channels: int, *, stride: int) -> None:
        super().__init__(spec, channels, stride=stride)
        relation = self.relation
        self.position = nn.Linear(2, 2, bias=False)  # a bias would cancel out
        # gamma's first layer, in two parts: one for the relation, one for the position.
        self.relate = nn.Conv2d(relation, relation, 1, bias=False)
        self.place = nn.Linear(2, relation)
        self.score = nn.Conv2d(relation, self.heads, 1)

    def mix(self, x: Float[Tensor, "B C Y X"], values: Float[Tensor, "B H E Y X"]) -> Float[Tensor, "B H E Y X"]:
        """Aggregate each window."""
        offsets = window_offsets(self.window, x.device).to(self.place.weight)
        # The coordinates of a cell minus those of the next row and column.
        rows, columns = (-2 / max(side - 1, 1) for side in x.shape[2:])
        place = self.place(self.position(torch.stack([offsets[:, 0] * rows, offsets[:, 1] * columns], dim=1))).mT
        # The first layer is linear, so it is applied before the difference: once per cell, not once per pair.
        own, seen = self.relate(self.query(x)), neighbours(self.relate(self.key(x)), self.window)
        hidden = (own[:, :, None] - seen + place[None, :, :, None, None]).relu()
        scores = rearrange(self.score(hidden.flatten(2, 3)), "B H (k Y) X -> B H k Y X", Y=x.shape[2])
        weights = scores.masked_fill(~on_map(x, self.window), -torch.inf).softmax(dim=2)
        return aggregate(weights, values, self.window)

    def flops(self, size: tuple[int, int]) -> int:
        """Count twice the multiply-adds for a map of this size, without elementwise operations."""
        cells = 2 * conv_flops(self.query, size) + conv_flops(self.value, size) + 2 * conv_flops(self.relate, size)
        place = 2 * self.window**2 * (self.position.weight.numel() + self.place.weight.numel())
        return cells + place + self.window**2 * conv_flops(self.score, size)
