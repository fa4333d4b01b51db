"""Position-sensitive axial attention (Wang et al., arXiv 2003.07853, equation 4).

Attention along the columns, then along the rows, so that two layers see the whole map. The score of a pair is
q'k + q'r_q + k'r_k and its value v + r_v; the embeddings r of offsets along the axis are shared by all heads, and
queries and keys are half as wide as values. The paper's batch norms inside the layer are left out: the residual unit
normalises before and after it. Stride 2 is average pooling.
"""

from __future__ import annotations

from typing import Literal

import torch
from einops import rearrange
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn

from vitrail import spec
from vitrail.nn.conv import conv_flops
from vitrail.nn.dot_product import check_heads
from vitrail.nn.map_attention import check_even_heads, pool
from vitrail.nn.relative import RelativeTable, axis_offsets


class Spec(spec.Spec):
    """The number of heads, and of cells along an axis after which offsets share an embedding."""

    name: Literal["axial"] = "axial"
    heads: int = 8
    span: PositiveInt = 56

    def check(self, channels: int, grid: tuple[int, int]) -> None:  # noqa: ARG002 - maps of any size
        """Reject heads that do not divide the channels."""
        check_heads(channels, self.heads)
        check_even_heads(channels, self.heads, "queries and keys are half as wide as values")


class AxisAttention(nn.Module):
    """Attention along the second last dimension of a map."""

    def __init__(self, channels: int, *, heads: int, span: int) -> None:
        super().__init__()
        self.heads, self.width = heads, channels // heads
        self.query = nn.Conv2d(channels, channels // 2, 1, bias=False)
        self.key = nn.Conv2d(channels, channels // 2, 1, bias=False)
        self.value = nn.Conv2d(channels, channels, 1, bias=False)
        reach, half = span - 1, self.width // 2
        self.query_table = RelativeTable(groups=1, reach=reach, width=half)
        self.key_table = RelativeTable(groups=1, reach=reach, width=half)
        self.value_table = RelativeTable(groups=1, reach=reach, width=self.width)

    def _split(self, x: Float[Tensor, "B C L S"], project: nn.Module) -> Float[Tensor, "B S H L E"]:
        return rearrange(project(x), "B (H E) L S -> B S H L E", H=self.heads)

    def weights(self, x: Float[Tensor, "B C L S"]) -> Float[Tensor, "B S H L L"]:
        """The attention of each cell (row) to those on the same line (column)."""
        q, k = self._split(x, self.query), self._split(x, self.key)
        offsets = axis_offsets(x.shape[2], x.shape[2], device=x.device)
        scores = q @ k.mT + torch.einsum("bshle,lme->bshlm", q, self.query_table(offsets)[0])
        return (scores + torch.einsum("bshme,lme->bshlm", k, self.key_table(offsets)[0])).softmax(dim=-1)

    def forward(self, x: Float[Tensor, "B C L S"]) -> Float[Tensor, "B C L S"]:
        weights = self.weights(x)
        places = self.value_table(axis_offsets(x.shape[2], x.shape[2], device=x.device))[0]
        mixed = weights @ self._split(x, self.value) + torch.einsum("bshlm,lme->bshle", weights, places)
        return rearrange(mixed, "B S H L E -> B (H E) L S")

    def flops(self, size: tuple[int, int]) -> int:
        """Count twice the multiply-adds, along the first of two sides."""
        pairs = size[0] ** 2 * size[1]
        cells = 2 * conv_flops(self.query, size) + conv_flops(self.value, size)
        return cells + 2 * pairs * self.heads * (3 * (self.width // 2) + 2 * self.width)


class Layer(nn.Module):
    """Attention along the height axis, then along the width axis."""

    def __init__(self, spec: Spec, channels: int, *, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.height = AxisAttention(channels, heads=spec.heads, span=spec.span)
        self.width = AxisAttention(channels, heads=spec.heads, span=spec.span)

    def forward(self, x: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B C Y2 X2"]:
        return pool(self.width(self.height(x).mT).mT, self.stride)

    def weights(self, x: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B H n N"]:
        """The weight of each cell (column) in each cell of the output (row), through both axes, head by head."""
        by_height = self.height.weights(x)  # B X H Y y
        by_width = self.width.weights(self.height(x).mT)  # B Y H X x
        paths = torch.einsum("byhxw,bwhyv->bhvwyx", by_width, by_height)  # from (v, w) by way of (y, w) to (y, x)
        pooled = pool(paths.flatten(1, 3), self.stride)
        return rearrange(pooled, "B (H N) Y X -> B H (Y X) N", H=paths.shape[1])

    def flops(self, size: tuple[int, int]) -> int:
        """Count twice the multiply-adds for a map of this size."""
        return self.height.flops(size) + self.width.flops((size[1], size[0]))
