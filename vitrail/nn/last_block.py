"""The last block of a model whose head reads only the class token: it computes no other output tokens.

The class token still attends to all tokens, so the logits are the same. ViT-B/16 does one fifteenth less work.
"""

from __future__ import annotations

import torch
from torch import nn

from vitrail.nn.attention.full import Attention, CrossAttention
from vitrail.nn.block import Block
from vitrail.nn.cache import Cache
from vitrail.nn.qkv import QvBiasLinear
from vitrail.nn.rotary import Rotary, Rotary2d
from vitrail.tokens import Layout, Tokens


class LastBlock(nn.Module):
    """A block that returns only its first `num_tokens` tokens."""

    def __init__(self, block: Block, num_tokens: int) -> None:
        super().__init__()
        assert isinstance(block.attn, Attention)
        self.num_tokens = num_tokens
        self.norm1, self.ls1, self.norm2, self.mlp, self.ls2 = (
            getattr(block, name) for name in ("norm1", "ls1", "norm2", "mlp", "ls2")
        )
        self.attn = _to_prefix_attention(block.attn)

    def forward(self, tokens: Tokens) -> Tokens:
        layout = Layout((0,) * len(tokens.layout.grid), self.num_tokens)
        z, normed = tokens.x[:, : self.num_tokens], self.norm1(tokens.x)
        z = z + self.ls1(self.attn(Tokens(normed[:, : self.num_tokens], layout), tokens.with_x(normed)))
        return Tokens(z + self.ls2(self.mlp(self.norm2(z))), layout)


class PrefixAttention(CrossAttention):
    """Attention from prefix tokens to all tokens; `rotary` turns the keys only, because prefix tokens have no place."""

    rotary: Rotary | Rotary2d | None

    def read(self, context: Tokens) -> Cache:
        """Compute the context's keys and values."""
        cache = super().read(context)
        return cache if self.rotary is None else cache._replace(k=self.rotary(cache.k, context))


def _to_prefix_attention(attention: Attention) -> PrefixAttention:
    """The same attention with the query projection separate from keys and values."""
    width, qkv = attention.proj.in_features, attention.qkv
    bias = qkv.joined_bias() if isinstance(qkv, QvBiasLinear) else qkv.bias
    prefix = PrefixAttention(width=width, heads=attention.heads, bias=bias is not None).to(attention.proj.weight)
    prefix.proj, prefix.rotary = attention.proj, attention.rotary
    with torch.no_grad():
        for name, value in (("weight", qkv.weight), ("bias", bias)):
            if value is not None:
                getattr(prefix.q, name).copy_(value[:width])
                getattr(prefix.kv, name).copy_(value[width:])
    return prefix.requires_grad_(False).eval()
