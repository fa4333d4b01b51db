"""Traces models of text block by block and recomputes their attention weights, as `trace` does for images.

`forward` never materialises an attention matrix. Here the weights of each block are computed from its input, one block
at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from vitrail.errors import InspectionError
from vitrail.inspection.method.rollout import roll_out
from vitrail.inspection.trace import attention_weights, eval_mode
from vitrail.model.language import LanguageModel
from vitrail.model.seq2seq import Seq2Seq
from vitrail.tokens import Tokens

MAX_WEIGHTS = 4_000_000  # in all maps of a page; with more, only the mean over heads is kept
MapName = Literal["self", "encoder", "decoder", "cross"]


class AttentionMap(NamedTuple):
    """The attention weights of all blocks and heads for one text; row i is what token i attends to."""

    name: MapName
    causal: bool
    weights: Float[NDArray[np.float32], "L H N M"]
    """With a single head: the mean over all heads, if there are too many for a page."""
    rollout: Float[NDArray[np.float32], "N N"] | None
    """Attention multiplied through all blocks; None for attention to another sequence."""


class TextTrace(NamedTuple):
    """The attention of a forward pass, and its logits at every place."""

    maps: tuple[AttentionMap, ...]
    logits: Float[Tensor, "N V"]


@torch.no_grad()
def trace_language(model: LanguageModel, text: Int64[Tensor, "1 N"]) -> TextTrace:
    """Trace a language model, causal or not."""
    spec, num = model.spec, text.shape[1]
    mean_only = _needs_mean([(spec.depth, num, num)], spec.heads)
    collected = _Collected("self", causal=spec.causal, mean_only=mean_only)
    with eval_mode(model):
        tokens = model.tokenize(text)
        for block in model.blocks:
            collected.add(attention_weights(block, tokens))
            tokens = block(tokens)
        logits = model.logits(model.norm(tokens.x))
    return TextTrace((collected.to_map(),), logits[0].float())


@torch.no_grad()
def trace_seq2seq(model: Seq2Seq, source: Int64[Tensor, "1 M"], target: Int64[Tensor, "1 N"]) -> TextTrace:
    """Trace an encoder-decoder; `target` is what the decoder reads, so it begins with [BOS]."""
    spec, num_source, num_target = model.spec, source.shape[1], target.shape[1]
    sizes = [
        (spec.depth, num_source, num_source),
        (spec.decoder_depth, num_target, num_target),
        (spec.decoder_depth, num_target, num_source),
    ]
    mean_only = _needs_mean(sizes, spec.heads)
    encoder = _Collected("encoder", causal=False, mean_only=mean_only)
    decoder = _Collected("decoder", causal=True, mean_only=mean_only)
    cross = _Collected("cross", causal=False, mean_only=mean_only)
    with eval_mode(model):
        context = model.tokenize(source)
        for block in model.blocks:
            encoder.add(attention_weights(block, context))
            context = block(context)
        context = context.with_x(model.norm(context.x))
        tokens = model.embed.tokens(target)
        for block in model.decoder:
            decoder.add(attention_weights(block, tokens))
            cross.add(cross_attention_weights(block, tokens, context))
            tokens = block(tokens, context)
        logits = model.logits(model.decoder_norm(tokens.x))
    return TextTrace((cross.to_map(), encoder.to_map(), decoder.to_map()), logits[0].float())


def cross_attention_weights(block: Any, tokens: Tokens, context: Tokens) -> Float[Tensor, "B H N M"]:
    """The weights of a decoder block's attention to the context, which follows its self-attention."""
    z = tokens.x + block.attn(tokens.with_x(block.norm1(tokens.x)))
    return block.cross_attn.weights(tokens.with_x(block.norm2(z)), context)


def _needs_mean(sizes: Sequence[tuple[int, int, int]], heads: int) -> bool:
    """Whether the maps of single heads are too many for a page; a text for which even their means are is refused."""
    num = sum(depth * rows * columns for depth, rows, columns in sizes)
    if num > MAX_WEIGHTS:
        tokens = max(max(rows, columns) for _, rows, columns in sizes)
        raise InspectionError(
            "the text is too long for a page.",
            got=f"{tokens:,} tokens, {num:,} attention weights.",
            hint="a shorter text.",
        )
    return num * heads > MAX_WEIGHTS


class _Collected:
    """The weights of one kind of attention, block by block."""

    def __init__(self, name: MapName, *, causal: bool, mean_only: bool) -> None:
        self.name, self.causal, self.mean_only = name, causal, mean_only
        self.blocks: list[Float[Tensor, "H N M"]] = []

    def add(self, weights: Float[Tensor, "1 H N M"]) -> None:
        heads = weights[0].float()
        self.blocks.append(heads.mean(dim=0, keepdim=True) if self.mean_only else heads)

    def to_map(self) -> AttentionMap:
        rollout = None if self.name == "cross" else roll_out(heads[None] for heads in self.blocks)[0].numpy()
        return AttentionMap(self.name, self.causal, torch.stack(self.blocks).numpy(), rollout)
