"""Relevance for a class (Chefer et al., arXiv 2103.15679): attention weighted by its gradient for the class's logit.

In each block, attention times its gradient, where positive and averaged over heads, shows along which paths evidence
flowed (equation 5); these paths are accumulated from the input to the head (equation 6). The gradient of the attention
is the gradient of the heads' outputs times the values, so the fused kernel stays on and the model unchanged.

For a Perceiver, latents and inputs are one sequence: cross-attention adds paths from inputs to latents, self-attention
passes them on among the latents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from einops import rearrange
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

TITLE = "Relevance"
DESCRIPTION = "Attention weighted by its gradient: the evidence for the selected class."
NEEDS_ATTENTION = True
applies = attends_to_cells


def compute_heatmaps(
    model: Classifier, images: Float[Tensor, "1 C *size"], classes: Sequence[int]
) -> Float[Tensor, "K ..."]:
    """How much each cell of the image supports each class."""
    if has_latents(model):
        return _through_latents(model, images, classes)
    model = require_attention(model, "--method gradcam")
    attentions = [block.attn for block in model.blocks] + [each for each in [model.attn_pool] if each is not None]
    with torch.enable_grad(), _record_head_outputs(attentions) as outputs:
        traced = trace(model, images.detach().requires_grad_())
        gradients = _gradients(traced.logits, classes, outputs)
    with torch.no_grad():
        identity = torch.eye(traced.output.x.shape[1], dtype=images.dtype, device=images.device)
        block: Any
        flows = identity.repeat(len(classes), 1, 1)
        for layer, (block, tokens) in enumerate(zip(model.blocks, traced.inputs, strict=True)):
            weights = attention_weights(block, tokens)
            _, _, values = block.attn.split(tokens.with_x(block.norm1(tokens.x)))
            for place, of_class in enumerate(gradients):
                flows[place] += _supporting(weights, values, of_class[layer]) @ flows[place]
        if model.attn_pool is None:
            # Without the identity: the head reads every cell directly to the same degree.
            rows = pooling_weights(model, traced.output) @ (flows - identity)
        else:
            query = model.attn_pool.query(traced.output)
            weights = model.attn_pool.weights(query, traced.output)
            _, _, values = model.attn_pool.split(query, traced.output)
            pooled = [_supporting(weights, values, of_class[-1]) for of_class in gradients]
            rows = torch.stack(pooled) @ flows
    return on_grid(rows[:, 0], traced.layout)


def _through_latents(
    model: Perceiver, images: Float[Tensor, "1 C *size"], classes: Sequence[int]
) -> Float[Tensor, "K ..."]:
    """How much each input supports each class, by way of the latents."""
    attentions = [block.attn for block in (*model.cross, *model.blocks)]
    with torch.enable_grad(), _record_head_outputs(attentions) as outputs:
        traced = trace_latents(model, images.detach().requires_grad_())
        gradients = _gradients(traced.logits, classes, outputs)
    rows = []
    with torch.no_grad():
        for of_class in gradients:
            flow = images.new_zeros(model.spec.num_latents, traced.layout.num_tokens)
            for step, gradient in zip(traced.steps, of_class, strict=True):
                paths = _supporting(step.weights(), step.values(), gradient)
                flow = flow + (paths if step.context is not None else paths @ flow)
            rows.append(flow.mean(dim=0))  # the head reads all latents to the same degree
    return on_grid(torch.stack(rows), traced.layout)


def _gradients(logits: Float[Tensor, "1 K"], classes: Sequence[int], outputs: list[Tensor]) -> list[Any]:
    """The gradients of each class's logit with respect to the heads' outputs of every attention."""
    return [
        torch.autograd.grad(logits[0, number], outputs, retain_graph=place + 1 < len(classes))
        for place, number in enumerate(classes)
    ]


def _supporting(
    weights: Float[Tensor, "1 H N M"], values: Float[Tensor, "1 H M E"], gradient: Float[Tensor, "1 N D"]
) -> Float[Tensor, "N M"]:
    """Attention times its gradient where that supports the class, averaged over heads (equation 5)."""
    of_heads = rearrange(gradient, "B N (H E) -> B H N E", H=weights.shape[1])
    return (weights * (of_heads @ values.transpose(-2, -1))).clamp_min(0.0).mean(dim=1)[0]


@contextmanager
def _record_head_outputs(attentions: Sequence[Any]) -> Iterator[list[Tensor]]:
    """Record the concatenated outputs of each attention's heads, the inputs of its projection."""
    outputs: list[Tensor] = []
    hooks = [each.proj.register_forward_pre_hook(lambda _, inputs: outputs.append(inputs[0])) for each in attentions]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()
