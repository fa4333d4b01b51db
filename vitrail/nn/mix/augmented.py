"""Attention-augmented convolution (Bello et al., arXiv 1904.09925, equations 1 to 5).

A `share` of the output channels comes from attention over the whole map, with relative positions of rows and columns
that all heads share; the rest comes from a 3 x 3 convolution. Queries and keys are twice as wide as values, as in the
paper's ResNets. With stride 2, what attention computes is average-pooled.
"""

from __future__ import annotations

from typing import Literal

import torch
from einops import rearrange
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn

from vitrail import spec
from vitrail.nn.conv import StdConv, conv_flops
from vitrail.nn.dot_product import attend, check_heads
from vitrail.nn.map_attention import MapAttention, split_map, to_cells, to_map
from vitrail.nn.relative import RelativeTable, axis_offsets, relative_flops, relative_scores


class Spec(spec.Spec):
    """The share of channels from attention, its heads, and the cells along an axis after which offsets share an
    embedding.
    """

    name: Literal["augmented"] = "augmented"
    share: spec.OpenFraction = 0.25
    heads: int = 4
    span: PositiveInt = 28

    def num_attended(self, channels: int) -> int:
        """How many channels attention computes."""
        return max(1, round(self.share * channels))

    def check(self, channels: int, grid: tuple[int, int]) -> None:  # noqa: ARG002 - maps of any size
        """Reject heads that do not divide the channels of attention."""
        check_heads(self.num_attended(channels), self.heads)


class RelativeAttention(MapAttention):
    """Attention over the whole map: softmax((q k' + rows + columns) / sqrt(E)) v."""

    value: nn.Conv2d

    def __init__(self, inputs: int, outputs: int, *, heads: int, span: int, stride: int) -> None:
        super().__init__(heads=heads, stride=stride)
        self.query = nn.Conv2d(inputs, 2 * outputs, 1)
        self.key = nn.Conv2d(inputs, 2 * outputs, 1)
        self.value = nn.Conv2d(inputs, outputs, 1)
        self.width = 2 * outputs // heads
        self.rows = RelativeTable(groups=1, reach=span - 1, width=self.width)
        self.columns = RelativeTable(groups=1, reach=span - 1, width=self.width)

    def mix(self, x: Float[Tensor, "B C Y X"], values: Float[Tensor, "B H E Y X"]) -> Float[Tensor, "B H E Y X"]:
        """Attend to every cell."""
        rows, columns = grid = (x.shape[2], x.shape[3])
        q, k = (to_cells(split_map(project(x), self.heads)) for project in (self.query, self.key))
        on_grid = rearrange(q, "B H (Y X) E -> B H Y X E", Y=rows) * self.width**-0.5
        bias = relative_scores(
            on_grid,
            on_grid,
            self.rows(axis_offsets(rows, rows, device=x.device)),
            self.columns(axis_offsets(columns, columns, device=x.device)),
        )
        return to_map(attend(q, k, to_cells(values), bias=bias, fused=self.fused), grid)

    def flops(self, size: tuple[int, int]) -> int:
        """Count twice the multiply-adds for a map of this size."""
        cells, outputs = size[0] * size[1], self.value.out_channels
        projections = 2 * conv_flops(self.query, size) + conv_flops(self.value, size)
        return projections + 2 * cells**2 * 3 * outputs + relative_flops(cells, size, 2 * outputs)


class Layer(nn.Module):
    """A convolution and attention side by side."""

    def __init__(self, spec: Spec, channels: int, *, stride: int) -> None:
        super().__init__()
        attended = spec.num_attended(channels)
        self.stride = stride
        self.conv = StdConv(channels, channels - attended, 3, stride=stride)
        self.attention = RelativeAttention(channels, attended, heads=spec.heads, span=spec.span, stride=stride)
        self.proj = nn.Conv2d(attended, attended, 1)

    def forward(self, x: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B C Y2 X2"]:
        return torch.cat([self.conv(x), self.proj(self.attention(x))], dim=1)

    def weights(self, x: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B H n N"]:
        """The attention of each cell of the output (row) to each cell (column)."""
        return self.attention.weights(x)

    def flops(self, size: tuple[int, int]) -> int:
        """Count twice the multiply-adds for a map of this size."""
        out = (-(-size[0] // self.stride), -(-size[1] // self.stride))
        return conv_flops(self.conv, out) + self.attention.flops(size) + conv_flops(self.proj, out)
