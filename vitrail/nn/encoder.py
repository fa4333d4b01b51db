"""A stack of blocks: the encoder of Vision Transformers, and of causal models, which decode with it step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from vitrail.nn.block import Block, MlpKind
from vitrail.nn.cache import Cache
from vitrail.tokens import Tokens


class Encoder(nn.Sequential):
    """Blocks, one after the other; `blocks.3.attn` and `blocks[:-1]` work as in any sequence of modules."""

    def step(self, tokens: Tokens, caches: Sequence[Cache] | None = None) -> tuple[Tokens, tuple[Cache, ...]]:
        """Compute the next tokens' outputs, those of a causal `forward` over the whole sequence, and the new caches."""
        block: Any
        new_caches = []
        for index, block in enumerate(self):
            tokens, cache = block.step(tokens, None if caches is None else caches[index])
            new_caches.append(cache)
        return tokens, tuple(new_caches)


def build_encoder(
    new_attention: Callable[[], nn.Module],
    *,
    depth: int,
    width: int,
    hidden: int,
    norm_eps: float,
    mlp: MlpKind = "mlp",
    activation: str = "gelu",
    dropout_rate: float = 0.0,
    hidden_dropout_rate: float | None = None,
    drop_path_rate: float = 0.0,
    layer_scale: float | None = None,
) -> Encoder:
    """Build `depth` blocks, each with an attention of its own; the drop path rate grows linearly with depth."""
    return Encoder(
        *[
            Block(
                new_attention(),
                width=width,
                hidden=hidden,
                norm_eps=norm_eps,
                mlp=mlp,
                activation=activation,
                dropout_rate=dropout_rate,
                hidden_dropout_rate=hidden_dropout_rate,
                drop_path_rate=drop_path_rate * index / max(depth - 1, 1),
                layer_scale=layer_scale,
            )
            for index in range(depth)
        ]
    )
