"""What every self-attention has: queries, keys and values of each head in one projection, and the output projection.

How the tokens are mixed is up to the entries of `nn/attention`. All have the same weights, so those of one load into
another.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.dot_product import check_heads, merge_heads, split_heads
from vitrail.nn.dropout import Dropout
from vitrail.tokens import Tokens


class SelfAttention(nn.Module):
    """The projections; `dropout_rate` drops outputs, `weights_dropout_rate` attention weights."""

    def __init__(
        self, *, width: int, heads: int, bias: bool, dropout_rate: float, weights_dropout_rate: float | None = None
    ) -> None:
        super().__init__()
        check_heads(width, heads)
        self.heads = heads
        self.dropout_rate = dropout_rate if weights_dropout_rate is None else weights_dropout_rate
        self.fused: bool | None = None
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.proj = nn.Linear(width, width)
        self.proj_drop = Dropout(dropout_rate)

    def split(self, tokens: Tokens) -> tuple[Float[Tensor, "B H N E"], ...]:
        """Compute the queries, keys and values of each head."""
        return split_heads(self.qkv(tokens.x), self.heads, num=3).unbind()

    def merge(self, heads: Float[Tensor, "B H N E"]) -> Float[Tensor, "B N D"]:
        """Concatenate the heads' outputs and project them."""
        return self.proj_drop(self.proj(merge_heads(heads)))

    @property
    def current_dropout_rate(self) -> float:
        """The rate at which attention weights are dropped now: only in training."""
        return self.dropout_rate if self.training else 0.0
