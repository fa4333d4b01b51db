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
    with torch.enable_grad(), _outputs_of_heads(model) as outputs:
        found = trace(model, images.detach().requires_grad_())
        gradients = [
            torch.autograd.grad(found.logits[0, number], outputs, retain_graph=place + 1 < len(classes))
            for place, number in enumerate(classes)
        ]
    num = found.output.x.shape[1]
    itself = torch.eye(num, dtype=images.dtype, device=images.device)
    flows = itself.repeat(len(classes), 1, 1)
    with torch.no_grad():
        for layer, (block, tokens) in enumerate(zip(model.blocks, found.inputs, strict=True)):
            weights = attention_of(block, tokens)
            _, _, values = block.attn.split(tokens.with_x(block.norm1(tokens.x)))
            for place in range(len(classes)):
                gradient = rearrange(gradients[place][layer], "B N (H E) -> B H N E", H=block.attn.heads)
                helpful = (weights * (gradient @ values.transpose(-2, -1))).clamp_min(0.0).mean(dim=1)[0]
                flows[place] += helpful @ flows[place]
        row = readout(model, found.output)
        reached = (row[:, None] @ (flows - itself))[:, 0]
    return on_grid(reached, found.layout)


@contextmanager
def _outputs_of_heads(model: Any) -> Iterator[list[Tensor]]:
    """What the heads of each block put out, side by side, as it goes into the projection."""
    outputs: list[Tensor] = []
    hooks = [
        block.attn.proj.register_forward_pre_hook(lambda _, inputs: outputs.append(inputs[0])) for block in model.blocks
    ]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()
