"""The last block of a model whose head reads the class token alone: what would become of the other tokens there is not
computed. All of them are still looked at, so the answer is the same; of ViT-B/16 one part in fifteen of the work is
saved.
"""

from __future__ import annotations

import torch
from torch import nn

from vitrail.nn.attention.full import Attention, CrossAttention
from vitrail.nn.block import Block
from vitrail.tokens import Layout, Tokens


class LastBlock(nn.Module):
    """A block that gives only its first `num` tokens."""

    def __init__(self, block: Block, num: int) -> None:
        super().__init__()
        assert isinstance(block.attn, Attention)
        self.num = num
        self.norm1, self.ls1, self.norm2, self.mlp, self.ls2 = (
            getattr(block, name) for name in ("norm1", "ls1", "norm2", "mlp", "ls2")
        )
        self.attn = _first_to_all(block.attn)

    def forward(self, tokens: Tokens) -> Tokens:
        layout = Layout((0,) * len(tokens.layout.grid), self.num)
        z, normed = tokens.x[:, : self.num], self.norm1(tokens.x)
        z = z + self.ls1(self.attn(Tokens(normed[:, : self.num], layout), tokens.with_x(normed)))
        return Tokens(z + self.ls2(self.mlp(self.norm2(z))), layout)


def _first_to_all(whole: Attention) -> CrossAttention:
    """The same attention, with its queries apart from its keys and values."""
    width = whole.proj.in_features
    parted = CrossAttention(width=width, heads=whole.heads, bias=whole.qkv.bias is not None).to(whole.proj.weight)
    parted.proj = whole.proj
    with torch.no_grad():
        for name, value in whole.qkv.named_parameters():
            getattr(parted.q, name).copy_(value[:width])
            getattr(parted.kv, name).copy_(value[width:])
    return parted.requires_grad_(False).eval()
