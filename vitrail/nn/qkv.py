"""The projection of tokens to queries, keys and values, as one product."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

QkvBias = Literal[True, False, "qv"]
"""Whether queries, keys and values have a bias; `qv` means all but the keys."""


class QvBiasLinear(nn.Linear):
    """Queries and values have a bias, keys have none, as in BEiT (Bao et al., arXiv 2106.08254) and DINOv3."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 3 * width, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(width))
        self.v_bias = nn.Parameter(torch.zeros(width))

    def joined_bias(self) -> Float[Tensor, " three_D"]:
        """The bias of the whole product, with zeros for the keys."""
        return torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N three_D"]:
        return F.linear(x, self.weight, self.joined_bias())


def qkv_linear(width: int, bias: QkvBias) -> nn.Linear:
    """Build the projection from tokens to the queries, keys and values of all heads, concatenated."""
    return QvBiasLinear(width) if bias == "qv" else nn.Linear(width, 3 * width, bias=bias)
