"""The last block of a model whose head reads only the class token: it computes no other output tokens.

The class token still attends to all tokens, so the logits are the same. ViT-B/16 does one fifteenth less work.
"""

from __future__ import annotations

import torch
from torch import nn

from vitrail.nn.attention.full import Attention, CrossAttention
from vitrail.nn.block import Block
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
        self.attn = _to_cross_attention(block.attn)

    def forward(self, tokens: Tokens) -> Tokens:
        layout = Layout((0,) * len(tokens.layout.grid), self.num_tokens)
        z, normed = tokens.x[:, : self.num_tokens], self.norm1(tokens.x)
        z = z + self.ls1(self.attn(Tokens(normed[:, : self.num_tokens], layout), tokens.with_x(normed)))
        return Tokens(z + self.ls2(self.mlp(self.norm2(z))), layout)


def _to_cross_attention(attention: Attention) -> CrossAttention:
    """The same attention with the query projection separate from keys and values."""
    width = attention.proj.in_features
    cross = CrossAttention(width=width, heads=attention.heads, bias=attention.qkv.bias is not None)
    cross = cross.to(attention.proj.weight)
    cross.proj = attention.proj
    with torch.no_grad():
        for name, value in attention.qkv.named_parameters():
            getattr(cross.q, name).copy_(value[:width])
            getattr(cross.kv, name).copy_(value[width:])
    return cross.requires_grad_(False).eval()
