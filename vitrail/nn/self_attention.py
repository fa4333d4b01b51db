"""What every self-attention has: queries, keys and values of each head in one projection, and the output projection.

How the tokens are mixed is up to the entries of `nn/attention`. All have these weights, so those of full attention load
into the others.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.dot_product import check_heads, merge_heads, split_heads
from vitrail.nn.dropout import Dropout
from vitrail.nn.qkv import QkvBias, qkv_linear
from vitrail.nn.rotary import Rotary, Rotary2d
from vitrail.tokens import Tokens


class SelfAttention(nn.Module):
    """The projections; `dropout_rate` drops outputs, `weights_dropout_rate` attention weights.

    With `rotary`, queries and keys know their places in a row or a grid (arXiv 2104.09864).
    """

    def __init__(
        self,
        *,
        width: int,
        heads: int,
        bias: QkvBias,
        dropout_rate: float,
        rotary: Rotary | Rotary2d | None = None,
        weights_dropout_rate: float | None = None,
    ) -> None:
        super().__init__()
        check_heads(width, heads)
        self.heads, self.rotary = heads, rotary
        self.dropout_rate = dropout_rate if weights_dropout_rate is None else weights_dropout_rate
        self.fused: bool | None = None
        self.qkv = qkv_linear(width, bias)
        self.proj = nn.Linear(width, width)
        self.proj_drop = Dropout(dropout_rate)

    def split(self, tokens: Tokens, first_place: int = 0) -> tuple[Float[Tensor, "B H N E"], ...]:
        """Compute the queries, keys and values of each head; `first_place` is the place of the first token."""
        qkv = split_heads(self.qkv(tokens.x), self.heads, num=3)
        if self.rotary is None:
            return qkv.unbind()
        return *self.rotary(qkv[:2], tokens, first_place), qkv[2]

    def merge(self, heads: Float[Tensor, "B H N E"]) -> Float[Tensor, "B N D"]:
        """Concatenate the heads' outputs and project them."""
        return self.proj_drop(self.proj(merge_heads(heads)))

    @property
    def current_dropout_rate(self) -> float:
        """The rate at which attention weights are dropped now: only in training."""
        return self.dropout_rate if self.training else 0.0
