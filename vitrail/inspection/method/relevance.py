"""Relevance for a class (Chefer et al., arXiv 2103.15679): attention, weighted by what it does for the class's logit.

In each layer the heads' attention times its gradient, where positive, says along which ways evidence flowed
(equation 5); these ways are followed from the input to the head (equation 6). The gradient of the attention is the
gradient of what the heads put out times the values, so the fused kernel stays on and the model unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from vitrail.inspection.trace import attention_of, on_grid, readout, require_attention, trace

TITLE = "Relevance"
SAYS = "Attention weighted by its gradient: what speaks for the chosen class."
NEEDS_ATTENTION = True


def heat(model: Any, images: Float[Tensor, "1 C Y X"], classes: Sequence[int]) -> Float[Tensor, "K Y X"]:
    """How much each cell of the picture speaks for each class."""
    require_attention(model, "--method gradcam")
    attentions = [block.attn for block in model.blocks] + [each for each in [model.attn_pool] if each is not None]
    with torch.enable_grad(), _outputs_of_heads(attentions) as outputs:
        found = trace(model, images.detach().requires_grad_())
        gradients = [
            torch.autograd.grad(found.logits[0, number], outputs, retain_graph=place + 1 < len(classes))
            for place, number in enumerate(classes)
        ]
    with torch.no_grad():
        itself = torch.eye(found.output.x.shape[1], dtype=images.dtype, device=images.device)
        flows = itself.repeat(len(classes), 1, 1)
        for layer, (block, tokens) in enumerate(zip(model.blocks, found.inputs, strict=True)):
            weights = attention_of(block, tokens)
            _, _, values = block.attn.split(tokens.with_x(block.norm1(tokens.x)))
            for place, of_class in enumerate(gradients):
                flows[place] += _helpful(weights, values, of_class[layer]) @ flows[place]
        if model.attn_pool is None:
            # What the head reads of a cell directly is the same for all of them.
            rows = readout(model, found.output) @ (flows - itself)
        else:
            query = model.attn_pool.query(found.output)
            weights = model.attn_pool.weights(query, found.output)
            _, _, values = model.attn_pool.split(query, found.output)
            read = [_helpful(weights, values, of_class[-1]) for of_class in gradients]
            rows = torch.stack(read) @ flows
    return on_grid(rows[:, 0], found.layout)


def _helpful(
    weights: Float[Tensor, "1 H N M"], values: Float[Tensor, "1 H M E"], gradient: Float[Tensor, "1 N D"]
) -> Float[Tensor, "N M"]:
    """Attention times its gradient where that speaks for the class, the mean over heads (equation 5)."""
    of_heads = rearrange(gradient, "B N (H E) -> B H N E", H=weights.shape[1])
    return (weights * (of_heads @ values.transpose(-2, -1))).clamp_min(0.0).mean(dim=1)[0]


@contextmanager
def _outputs_of_heads(attentions: Sequence[Any]) -> Iterator[list[Tensor]]:
    """What the heads of each attention put out, side by side, as it goes into the projection."""
    outputs: list[Tensor] = []
    hooks = [each.proj.register_forward_pre_hook(lambda _, inputs: outputs.append(inputs[0])) for each in attentions]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()
