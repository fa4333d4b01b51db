"""Low-rank adaptation (Hu et al., arXiv 2106.09685): frozen weights, and a low-rank update B A for each matrix.

It uses PyTorch's parametrizations, so that models need no change and merging is one call.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from vitrail.contract import Model
from vitrail.errors import SpecError

SCALE = 2.0  # alpha / rank of the paper


class LowRank(nn.Module):
    """W + scale B A, with A random and B zero, so that the initial output is unchanged."""

    def __init__(self, rows: int, columns: int, rank: int) -> None:
        super().__init__()
        self.down_weight = nn.Parameter(torch.empty(rank, columns))
        self.up_weight = nn.Parameter(torch.zeros(rows, rank))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.down_weight, a=math.sqrt(5))

    def forward(self, weight: Float[Tensor, "O I"]) -> Float[Tensor, "O I"]:
        return weight + SCALE * self.up_weight @ self.down_weight


def wrap(model: Model, rank: int) -> None:
    """Freeze all but the head, and add an update of this rank to each linear layer of the blocks."""
    blocks = getattr(model, "blocks", None)
    linears = [module for module in blocks.modules() if isinstance(module, nn.Linear)] if blocks is not None else []
    if not linears:
        raise SpecError("lora updates the linear layers of transformer blocks.", got=f"lora={rank}.", hint="lora=0.")
    model.requires_grad_(False)
    for head in model.heads:
        head.requires_grad_(True)
    for linear in linears:
        parametrize.register_parametrization(linear, "weight", LowRank(linear.out_features, linear.in_features, rank))
        linear.parametrizations.weight.original.requires_grad_(False)  # type: ignore[union-attr]


def merge(model: nn.Module) -> None:
    """Add the updates to the weights and remove the parametrizations."""
    for module in list(model.modules()):
        if parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)
    model.requires_grad_(True)
