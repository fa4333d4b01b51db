"""Patchwise self-attention (Zhao et al., arXiv 2004.13621, equation 4), with the relation by concatenation.

All weights of a window are computed together: gamma([phi(x_i), psi(x_j) for all j in the window]), where gamma is two
linear layers with a ReLU between them; they are not normalised. `share` channels have the same weights. A linear layer
on a concatenated window is a convolution, which is how it is computed. The paper pads maps by reflection; here a cell
beyond the map is zero. Stride 2 is average pooling.
"""

from __future__ import annotations

from typing import Literal

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.conv import conv_flops
from vitrail.nn.map_attention import aggregate, on_map
from vitrail.nn.relation import RelationAttention, RelationSpec


class Spec(RelationSpec):
    """The settings of both forms of self-attention."""

    name: Literal["san_patchwise"] = "san_patchwise"


class Layer(RelationAttention):
    """Weights from a whole window."""

    def __init__(self, spec: Spec, channels: int, *, stride: int) -> None:
        super().__init__(spec, channels, stride=stride)
        relation = self.relation
        # gamma's first layer, in two parts: one for the cell itself, one for its window.
        self.own = nn.Conv2d(relation, relation, 1, bias=False)
        self.around = nn.Conv2d(relation, relation, spec.window, padding=spec.window // 2)
        self.score = nn.Conv2d(relation, self.heads * spec.window**2, 1)

    def mix(self, x: Float[Tensor, "B C Y X"], values: Float[Tensor, "B H E Y X"]) -> Float[Tensor, "B H E Y X"]:
        """Aggregate each window."""
        hidden = (self.own(self.query(x)) + self.around(self.key(x))).relu()
        weights = rearrange(self.score(hidden), "B (H k) Y X -> B H k Y X", H=self.heads)
        return aggregate(weights * on_map(x, self.window), values, self.window)

    def flops(self, size: tuple[int, int]) -> int:
        """Count twice the multiply-adds for a map of this size, without elementwise operations."""
        layers = (self.query, self.key, self.value, self.own, self.around, self.score)
        return sum(conv_flops(each, size) for each in layers)
