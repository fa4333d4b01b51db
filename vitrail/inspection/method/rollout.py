"""Attention rollout (Abnar and Zuidema, arXiv 2005.00928): attention multiplied through all blocks.

"Attention from the output token to the input space", figure 6 of arXiv 2010.11929. The residual connection passes each
token on beside its attention, so each block's matrix is averaged with the identity. The heatmap is the same for every
class. For a Perceiver, what its latents have read from the inputs is passed on in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.contract import Classifier
from vitrail.inspection.latents import trace_latents
from vitrail.inspection.trace import (
    attends_to_cells,
    attention_weights,
    has_latents,
    on_grid,
    pooling_weights,
    require_attention,
    trace,
)
from vitrail.model.perceiver import Perceiver

TITLE = "Attention rollout"
DESCRIPTION = "Attention multiplied through all blocks: where the head's input comes from. The same for every class."
NEEDS_ATTENTION = True
Fusion = Literal["mean", "max", "min"]
applies = attends_to_cells


def roll_out(
    layers: Iterable[Float[Tensor, "B H N N"]], *, fusion: Fusion = "mean", discard_rate: float = 0.0
) -> Float[Tensor, "B N N"]:
    """The product of all blocks; rows sum to one. The smallest `discard_rate` of the weights are set to zero."""
    product: Tensor | None = None
    for heads in layers:
        fused = fuse_heads(heads, fusion=fusion, discard_rate=discard_rate)
        step = fused + torch.eye(fused.shape[-1], dtype=fused.dtype, device=fused.device)
        step = step / step.sum(dim=-1, keepdim=True)
        product = step if product is None else step @ product
    assert product is not None, "a model has at least one block"
    return product


def fuse_heads(heads: Float[Tensor, "B H N M"], *, fusion: Fusion, discard_rate: float) -> Float[Tensor, "B N M"]:
    """One matrix for all heads, with the smallest `discard_rate` of its weights set to zero."""
    fused = heads.mean(dim=1) if fusion == "mean" else heads.amax(dim=1) if fusion == "max" else heads.amin(dim=1)
    if not discard_rate:
        return fused
    num = int(discard_rate * fused.shape[-1])
    return fused.scatter(-1, fused.topk(num, dim=-1, largest=False).indices, 0.0)


def roll_out_latents(
    model: Perceiver, images: Float[Tensor, "B C *size"], *, fusion: Fusion = "mean", discard_rate: float = 0.0
) -> Float[Tensor, "B ..."]:
    """How much of each input reaches the mean of the latents; the rest is what they held from the start."""
    traced = trace_latents(model, images)
    reached = images.new_zeros(len(images), model.spec.num_latents, traced.layout.num_tokens)
    for step in traced.steps:
        fused = fuse_heads(step.weights(), fusion=fusion, discard_rate=discard_rate)
        weights = fused / fused.sum(dim=-1, keepdim=True)
        mixed = weights if step.context is not None else weights @ reached
        reached = (reached + mixed) / 2
    return on_grid(reached.mean(dim=1), traced.layout)


@torch.no_grad()
def compute_heatmaps(
    model: Classifier,
    images: Float[Tensor, "1 C *size"],
    classes: Sequence[int],
    *,
    fusion: Fusion = "mean",
    discard_rate: float = 0.0,
) -> Float[Tensor, "K ..."]:
    """How much of each cell reaches the head, the same for all classes."""
    if has_latents(model):
        rolled = roll_out_latents(model, images, fusion=fusion, discard_rate=discard_rate)
        return rolled.expand(len(classes), *rolled.shape[1:])
    model = require_attention(model, "--method gradcam")
    traced = trace(model, images)
    layers = (attention_weights(block, tokens) for block, tokens in zip(model.blocks, traced.inputs, strict=True))
    rolled = roll_out(layers, fusion=fusion, discard_rate=discard_rate)
    row = pooling_weights(model, traced.output)[:, None] @ rolled
    return on_grid(row[:, 0], traced.layout).expand(len(classes), *traced.layout.grid)
