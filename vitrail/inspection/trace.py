"""Traces a forward pass block by block and recomputes the attention weights.

`forward` never materialises an attention matrix. Here each block's input is stored and its attention weights are
computed from it, one block at a time, so that memory holds the matrices of one block however deep the model is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.contract import Classifier
from vitrail.errors import InspectionError, ShapeError
from vitrail.model.perceiver import Perceiver
from vitrail.model.vit import VisionTransformer
from vitrail.tokens import Layout, Tokens


class Trace(NamedTuple):
    """The tokens before each block, those after the last one, the normalised output tokens, and the logits."""

    inputs: tuple[Tokens, ...]
    last: Tokens
    output: Tokens
    logits: Float[Tensor, "B K"]

    @property
    def layout(self) -> Layout:
        """The layout of the output tokens."""
        return self.output.layout

    @property
    def stages(self) -> tuple[Tokens, ...]:
        """The tokens before the first block, then after each."""
        return (*self.inputs, self.last)


def has_attention(model: nn.Module) -> TypeGuard[VisionTransformer]:
    """Whether every block of a model has attention."""
    return isinstance(model, VisionTransformer) and all(hasattr(block, "attn") for block in model.blocks)


def has_latents(model: nn.Module) -> TypeGuard[Perceiver]:
    """Whether the cells of an image are read by the latents of a Perceiver, see `inspection/latents.py`."""
    return isinstance(model, Perceiver)


def attends_to_cells(model: nn.Module) -> bool:
    """Whether attention leads back from the head to the cells of an image, perhaps by way of latents."""
    return has_attention(model) or has_latents(model)


def require_attention(model: Classifier, alternative: str) -> VisionTransformer:
    """Return the model; reject one without attention between cells, and suggest an alternative that works."""
    if has_latents(model):
        raise InspectionError(
            "the cells of an image do not attend to each other in this model: latents read them.",
            got=f"a {type(model).__name__}.",
            hint="vitrail explain, which shows what the latents read.",
        )
    if not has_attention(model):
        raise InspectionError(
            "this model has no attention to show.", got=f"a {type(model).__name__}.", hint=f"{alternative}."
        )
    return model


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Switch the model to evaluation mode, and restore its mode afterwards."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def trace(model: VisionTransformer, images: Float[Tensor, "B C *size"]) -> Trace:
    """Run the model and record the tokens before each block; gradients flow if enabled."""
    tokens = model.tokenize(images)
    tokens = tokens.with_x(model.pos_drop(tokens.x))
    inputs = []
    for block in model.blocks:
        inputs.append(tokens)
        tokens = block(tokens)
    output = tokens.with_x(model.norm(tokens.x))
    return Trace(tuple(inputs), tokens, output, model.classify(output))


def attention_weights(block: Any, tokens: Tokens, queries: Tensor | None = None) -> Float[Tensor, "B H N N"]:
    """The attention weights of a block for its input tokens; with `queries`, only the rows of these tokens."""
    return block.attn.weights(tokens.with_x(block.norm1(tokens.x)), queries)


@torch.no_grad()
def iter_attention(
    model: Classifier, images: Float[Tensor, "B C *size"], queries: Tensor | None = None
) -> Iterator[Float[Tensor, "B H N N"]]:
    """The attention weights of each block in turn."""
    model = require_attention(model, "--method gradcam")
    with eval_mode(model):
        traced = trace(model, images)
    for block, tokens in zip(model.blocks, traced.inputs, strict=True):
        yield attention_weights(block, tokens, queries)


def pooling_weights(model: VisionTransformer, output: Tokens) -> Float[Tensor, "B N"]:
    """The weight of each token in the head's input: the class token, the mean of all cells, or attention pooling."""
    num, prefix = output.x.shape[1], output.layout.prefix
    if model.attn_pool is not None:
        return model.attn_pool.weights(model.attn_pool.query(output), output).mean(dim=1)[:, 0]
    row = torch.zeros(num, dtype=output.x.dtype, device=output.x.device)
    if model.spec.pool == "mean":
        row[prefix:] = 1 / output.cells.shape[1]
    else:
        num_heads = 1 + model.spec.distilled
        row[:num_heads] = 1 / num_heads
    return row.expand(output.x.shape[0], -1)


def on_grid(row: Float[Tensor, "*B N"], layout: Layout) -> Float[Tensor, "*B ..."]:
    """Arrange one value per token as a map; prefix tokens have no position in it and are dropped."""
    if row.shape[-1] != layout.num_tokens:
        raise ShapeError(
            "a map needs a value for every cell of the grid.",
            got=f"{row.shape[-1]} values for {layout.num_tokens} tokens.",
            hint="all tokens of the image, not a subset.",
        )
    return row[..., layout.prefix :].view(*row.shape[:-1], *layout.grid)
