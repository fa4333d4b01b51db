"""Layers between the last block and the classifier: pooling, and the optional hidden layer of pre-training."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.attention.full import CrossAttention
from vitrail.nn.block import Mlp
from vitrail.tokens import Layout, Tokens


class AttentionPool(CrossAttention):
    """A learned query attends to all tokens, and an MLP follows (Zhai et al., arXiv 2106.04560, section 3.3)."""

    def __init__(self, *, width: int, heads: int, hidden: int, norm_eps: float, activation: str = "gelu") -> None:
        super().__init__(width=width, heads=heads)
        self.latent = nn.Parameter(torch.empty(1, 1, width))
        self.norm = nn.LayerNorm(width, eps=norm_eps)
        self.mlp = Mlp(width=width, hidden=hidden, activation=activation)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.trunc_normal_(self.latent, std=self.latent.shape[-1] ** -0.5)

    def query(self, tokens: Tokens) -> Tokens:
        """Expand the learned query to a sequence of one token per sample."""
        return Tokens(self.latent.expand(tokens.x.shape[0], -1, -1), Layout(grid=(1,)))

    def pool(self, tokens: Tokens) -> Float[Tensor, "B D"]:
        """Pool the tokens to one vector per sample."""
        x = self(self.query(tokens), tokens)
        x = x + self.mlp(self.norm(x))
        return x[:, 0]


class PreLogits(nn.Module):
    """The tanh layer that the paper uses in pre-training and drops for fine-tuning (arXiv 2010.11929, section 3.1)."""

    def __init__(self, *, width: int, hidden: int) -> None:
        super().__init__()
        self.fc = nn.Linear(width, hidden)

    def forward(self, x: Float[Tensor, "B D"]) -> Float[Tensor, "B F"]:
        return self.fc(x).tanh()


def mean_of_cells(tokens: Tokens) -> Float[Tensor, "B D"]:
    """Average the tokens of the grid; prefix tokens and padding do not count."""
    if tokens.mask is None:
        return tokens.cells.mean(dim=1)
    real = tokens.mask[:, tokens.layout.prefix :, None].to(tokens.x.dtype)
    return (tokens.cells * real).sum(dim=1) / real.sum(dim=1)
