"""Traces a Perceiver: what its latents read from the inputs, and what they then take from each other.

Latents have no place in the image, so the only maps of the image are those of cross-attention, and what follows from
them block by block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.inspection.trace import eval_mode
from vitrail.model.perceiver import Perceiver
from vitrail.nn.cache import Cache
from vitrail.tokens import Layout, Tokens


class Step(NamedTuple):
    """A block and the latents before it; a cross-attention has the keys and values of the inputs as its context."""

    block: Any
    latents: Tokens
    context: Cache | None = None

    def weights(self) -> Float[Tensor, "B H N M"]:
        """The attention of each latent to the inputs or, without a context, to the latents."""
        context = () if self.context is None else (self.context,)
        return self.block.attn.weights(self._normed(), *context)

    def values(self) -> Float[Tensor, "B H M E"]:
        """What the attention mixes."""
        return self.block.attn.split(self._normed())[2] if self.context is None else self.context.v

    def _normed(self) -> Tokens:
        return self.latents.with_x(self.block.norm1(self.latents.x))


class LatentTrace(NamedTuple):
    """The steps of a forward pass in order, the layout of the inputs, and the logits."""

    steps: tuple[Step, ...]
    layout: Layout
    logits: Float[Tensor, "B K"]


def trace_latents(model: Perceiver, images: Float[Tensor, "B C *size"]) -> LatentTrace:
    """Run the model and record the latents before each block; gradients flow if enabled."""
    steps: list[Step] = []
    hooks = [
        block.register_forward_pre_hook(lambda block, given: steps.append(Step(block, *given)))
        for block in (*model.cross, *model.blocks)
    ]
    try:
        tokens = model.tokenize(images)
        logits = model.classify(model.encode(tokens))
    finally:
        for hook in hooks:
            hook.remove()
    return LatentTrace(tuple(steps), tokens.layout, logits)


@torch.no_grad()
def iter_reading(model: Perceiver, images: Float[Tensor, "B C *size"]) -> Iterator[Float[Tensor, "B H N M"]]:
    """The cross-attention of each stage in turn, from latents (rows) to inputs (columns)."""
    with eval_mode(model):
        traced = trace_latents(model, images)
    for step in traced.steps:
        if step.context is not None:
            yield step.weights()
