"""A picture's way through a model, block by block, and the attention that was paid on it.

`forward` never forms an attention matrix. Here each block's own input is kept, and its `weights` are computed from it,
one layer at a time, so that memory holds one layer's matrices however deep the model is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import InspectionError
from vitrail.tokens import Layout, Tokens


class Trace(NamedTuple):
    """The tokens before each block, after the last one, and the logits."""

    inputs: tuple[Tokens, ...]
    output: Tokens
    logits: Float[Tensor, "B K"]

    @property
    def layout(self) -> Layout:
        """Where each token came from."""
        return self.output.layout


def has_attention(model: Any) -> bool:
    """Whether a model has blocks that pay attention."""
    return all(hasattr(block, "attn") for block in getattr(model, "blocks", [None]))


def require_attention(model: Any, others: str) -> None:
    """Refuse a model that pays no attention, and say what can be had of it."""
    if not has_attention(model):
        raise InspectionError(
            "this model has no attention to show.", got=f"a {type(model).__name__}.", hint=f"{others}."
        )


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """The model in evaluation mode, and afterwards in the mode that it was in."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def trace(model: Any, images: Float[Tensor, "B C Y X"]) -> Trace:
    """Send pictures through a model and keep the tokens before each block; gradients flow if they are wanted."""
    tokens = model.tokenize(images)
    tokens = tokens.with_x(model.pos_drop(tokens.x))
    inputs = []
    for block in model.blocks:
        inputs.append(tokens)
        tokens = block(tokens)
    output = tokens.with_x(model.norm(tokens.x))
    return Trace(tuple(inputs), output, model.classify(output))


def attention_of(block: Any, tokens: Tokens, queries: Tensor | None = None) -> Float[Tensor, "B H N N"]:
    """How much each token looks at each other in this block; with `queries`, the rows of these tokens alone."""
    return block.attn.weights(tokens.with_x(block.norm1(tokens.x)), queries)


@torch.no_grad()
def attention(
    model: Any, images: Float[Tensor, "B C Y X"], queries: Tensor | None = None
) -> Iterator[Float[Tensor, "B H N N"]]:
    """The attention of every block, one after the other."""
    require_attention(model, "--method gradcam")
    with evaluating(model):
        found = trace(model, images)
    for block, tokens in zip(model.blocks, found.inputs, strict=True):
        yield attention_of(block, tokens, queries)


def readout(model: Any, output: Tokens) -> Float[Tensor, "B N"]:
    """How much the head reads of each token: the class token, all cells evenly, or what the pooling attends to."""
    num, prefix = output.x.shape[1], output.layout.prefix
    if model.attn_pool is not None:
        return model.attn_pool.weights(model.attn_pool.query(output), output).mean(dim=1)[:, 0]
    row = torch.zeros(num, dtype=output.x.dtype, device=output.x.device)
    if model.spec.pool == "mean":
        row[prefix:] = 1 / output.layout.num_cells
    else:
        heads = 1 + model.spec.distilled
        row[:heads] = 1 / heads
    return row.expand(output.x.shape[0], -1)


def on_grid(row: Float[Tensor, "... N"], layout: Layout) -> Float[Tensor, "... Y X"]:
    """Numbers of tokens as a map: prefix tokens have no place, so they are left out."""
    return row[..., layout.prefix :].view(*row.shape[:-1], *layout.grid)
