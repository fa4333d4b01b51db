"""From token ids to Tokens: an embedding for each word of the vocabulary, and learned positions."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from vitrail.errors import ShapeError
from vitrail.nn.dropout import Dropout
from vitrail.tokens import Layout, Tokens

INIT_STD = 0.02
TextPosition = Literal["learned", "rotary"]
"""A learned table is added to the embeddings; rotary positions are applied to queries and keys in each attention."""


class TokenEmbedding(nn.Embedding):
    """One row per word of the vocabulary; the same rows, as a matrix, turn outputs into logits (arXiv 1608.05859)."""

    def __init__(self, *, vocab: int, width: int, context: int, position: TextPosition, dropout_rate: float) -> None:
        super().__init__(vocab, width)
        self.context = context
        self.positions = nn.Embedding(context, width) if position == "learned" else None
        self.drop = Dropout(dropout_rate)
        if self.positions is not None:
            nn.init.normal_(self.positions.weight, std=INIT_STD)

    def reset_parameters(self) -> None:
        """Initialise with small random rows."""
        nn.init.normal_(self.weight, std=INIT_STD)

    def tokens(
        self, ids: Int64[Tensor, "B N"], mask: Bool[Tensor, "B N"] | None = None, first_place: int = 0
    ) -> Tokens:
        """Embed rows of ids, the first of which is at `first_place`; `mask` is False for padding."""
        num = ids.shape[-1]
        if ids.ndim != 2 or ids.is_floating_point() or first_place + num > self.context:
            raise ShapeError(
                f"the model takes token ids of shape [batch, up to {self.context}].",
                got=f"{list(ids.shape)} of {ids.dtype}" + (f" after {first_place} tokens." if first_place else "."),
                hint="a shorter text, or a model with a larger context.",
            )
        x = self(ids)
        if self.positions is not None:
            x = x + self.positions(torch.arange(first_place, first_place + num, device=ids.device))
        return Tokens(self.drop(x), Layout(grid=(num,)), mask)

    def logits(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        """How likely each word of the vocabulary is, from the outputs of the last layer."""
        return nn.functional.linear(x, self.weight)


def init_text_model(model: nn.Module, *, depth: int) -> None:
    """Initialise as GPT-2: small random matrices, smaller ones at the end of each residual branch."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            last = name.endswith(("proj", "fc2"))
            nn.init.normal_(module.weight, std=INIT_STD / (2 * depth) ** 0.5 if last else INIT_STD)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
