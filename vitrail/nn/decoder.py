"""The decoder block of sequence-to-sequence models (Vaswani et al., arXiv 1706.03762, figure 1), here pre-norm."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from vitrail.nn.attention.full import Attention, CrossAttention
from vitrail.nn.block import DropPath, Mlp
from vitrail.nn.cache import Cache
from vitrail.nn.rotary import Rotary
from vitrail.tokens import Tokens


class DecoderCache(NamedTuple):
    """What a decoder block remembers: its own earlier tokens, and the context, which does not change."""

    context: Cache
    earlier: Cache | None = None


class DecoderBlock(nn.Module):
    """Causal self-attention, attention to a context, and an MLP, each on normalised tokens and added to them."""

    def __init__(
        self,
        *,
        width: int,
        heads: int,
        hidden: int,
        norm_eps: float,
        context_width: int | None = None,
        bias: bool = True,
        activation: str = "gelu",
        rotary: Rotary | None = None,
        dropout_rate: float = 0.0,
        weights_dropout_rate: float | None = None,
        hidden_dropout_rate: float | None = None,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=norm_eps)
        self.attn = Attention(
            width=width,
            heads=heads,
            bias=bias,
            causal=True,
            rotary=rotary,
            dropout_rate=dropout_rate,
            weights_dropout_rate=weights_dropout_rate,
        )
        self.norm2 = nn.LayerNorm(width, eps=norm_eps)
        self.cross_attn = CrossAttention(
            width=width,
            heads=heads,
            context_width=context_width,
            bias=bias,
            dropout_rate=dropout_rate,
            weights_dropout_rate=weights_dropout_rate,
        )
        self.norm3 = nn.LayerNorm(width, eps=norm_eps)
        self.mlp = Mlp(
            width=width,
            hidden=hidden,
            dropout_rate=dropout_rate,
            hidden_dropout_rate=hidden_dropout_rate,
            activation=activation,
        )
        self.drop_path = DropPath(rate=drop_path_rate)

    def forward(self, tokens: Tokens, context: Tokens) -> Tokens:
        """`context.mask` hides its padding; the context is normalised already, as an encoder returns it."""
        return self.step(tokens, self.start(context))[0]

    def start(self, context: Tokens) -> DecoderCache:
        """Read the context; the result is the cache for the first step."""
        return DecoderCache(self.cross_attn.read(context))

    def step(self, tokens: Tokens, cache: DecoderCache) -> tuple[Tokens, DecoderCache]:
        """Compute the next tokens' outputs, those of `forward` over the whole sequence, and the new cache."""
        z = tokens.x
        mixed, earlier = self.attn.step(tokens.with_x(self.norm1(z)), cache.earlier)
        z = z + self.drop_path(mixed)
        z = z + self.drop_path(self.cross_attn.step(tokens.with_x(self.norm2(z)), cache.context))
        z = z + self.drop_path(self.mlp(self.norm3(z)))
        return tokens.with_x(z), cache._replace(earlier=earlier)
