"""Decodes a language model one token at a time, for one sequence.

`LanguageModel.step` does that for any batch and any number of tokens, but one token of a small model is bound by the
calls, not by the arithmetic. Here the same equations are written with as few calls as possible: no modules, weights
stored transposed, keys and values written into a buffer of the whole context. A test holds it to the model's outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.model.language import LanguageModel
from vitrail.nn.attention.full import Attention
from vitrail.nn.block import Block, Mlp
from vitrail.nn.rotary import rotate


class _Layer(NamedTuple):
    """A block's parameters; matrices are transposed, so that a vector is multiplied from the left."""

    norm1: tuple[Tensor, Tensor]
    qkv: tuple[Tensor, Tensor]
    proj: tuple[Tensor, Tensor]
    norm2: tuple[Tensor, Tensor]
    fc1: tuple[Tensor, Tensor]
    fc2: tuple[Tensor, Tensor]


class TokenStream:
    """Reads tokens and predicts the next one: `read` a prompt, then `step` by step."""

    def __init__(self, model: LanguageModel) -> None:
        spec, weight = model.spec, model.embed.weight
        self.model, self.num_read = model, 0
        self.layers: list[_Layer] = []  # a second copy of the matrices, made for the first step
        shape = (2, spec.depth, 1, spec.heads, spec.context, spec.width // spec.heads)
        self.cache: Float[Tensor, "2 L 1 H M E"] = torch.empty(shape, dtype=weight.dtype, device=weight.device)

    def read(self, ids: Sequence[int]) -> Float[Tensor, " V"]:
        """Forget what was read and read these tokens; return the logits for the one after them."""
        logits, caches = self.model.step(torch.tensor([list(ids)], device=self.cache.device))
        self.num_read = len(ids)
        for layer, cache in enumerate(caches):
            self.cache[0, layer, :, :, : self.num_read] = cache.k
            self.cache[1, layer, :, :, : self.num_read] = cache.v
        return logits[0]

    def step(self, number: int) -> Float[Tensor, " V"]:
        """Read one more token; return the logits for the one after it."""
        model, place = self.model, self.num_read
        self.layers = self.layers or [_read_layer(block) for block in model.blocks]
        width, heads, eps = (model.spec.width,), model.spec.heads, model.spec.norm_eps
        embed, rotary = model.embed, model.rotary
        x = embed.weight[number : number + 1]
        if embed.positions is not None:
            x = x + embed.positions.weight[place : place + 1]
        if rotary is not None:
            cos, sin = rotary.cos[place], rotary.sin[place]
        keys, values = self.cache[..., : place + 1, :]
        for layer, k_seen, v_seen in zip(self.layers, keys, values, strict=True):
            normed = F.layer_norm(x, width, *layer.norm1, eps)
            qkv = torch.addmm(layer.qkv[1], normed, layer.qkv[0]).view(3, 1, heads, 1, -1)
            q, k = qkv[:2] if rotary is None else rotate(qkv[:2], cos, sin)
            k_seen[:, :, place:] = k
            v_seen[:, :, place:] = qkv[2]
            mixed = F.scaled_dot_product_attention(q, k_seen, v_seen)
            x = x + torch.addmm(layer.proj[1], mixed.view(1, -1), layer.proj[0])
            hidden = torch.addmm(layer.fc1[1], F.layer_norm(x, width, *layer.norm2, eps), layer.fc1[0])
            x = x + torch.addmm(layer.fc2[1], F.gelu(hidden), layer.fc2[0])
        self.num_read += 1
        return model.logits(model.norm(x))[0]


def _read_layer(block: nn.Module) -> _Layer:
    assert isinstance(block, Block)
    attn, mlp = block.attn, block.mlp
    assert isinstance(attn, Attention)
    assert isinstance(mlp, Mlp)
    return _Layer(
        norm1=(block.norm1.weight, block.norm1.bias),
        qkv=_transpose(attn.qkv),
        proj=_transpose(attn.proj),
        norm2=(block.norm2.weight, block.norm2.bias),
        fc1=_transpose(mlp.fc1),
        fc2=_transpose(mlp.fc2),
    )


def _transpose(linear: nn.Linear) -> tuple[Tensor, Tensor]:
    return linear.weight.T.contiguous(), linear.bias
