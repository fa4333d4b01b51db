"""Rotary position embedding: queries and keys are rotated by their places (Su et al., arXiv 2104.09864, equation 34).

The product of a query and a key then depends on their distance only. The two numbers of a rotated pair are half a head
apart, as in GPT-NeoX and Llama.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import SpecError

BASE = 10000.0


class Rotary(nn.Module):
    """Rotates vectors by their places, up to `num_places`; one instance serves all layers of a model."""

    cos: Float[Tensor, "M E"]
    sin: Float[Tensor, "M E"]

    def __init__(self, *, num_places: int, width: int) -> None:
        super().__init__()
        self.shift = width // 2
        rate = BASE ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
        angle = torch.outer(torch.arange(num_places, dtype=torch.float32), rate)
        self.register_buffer("cos", angle.cos().repeat(1, 2), persistent=False)
        self.register_buffer("sin", torch.cat([-angle.sin(), angle.sin()], dim=1), persistent=False)

    def forward(self, x: Float[Tensor, "... N E"], first_place: int = 0) -> Float[Tensor, "... N E"]:
        """Rotate tokens in a row, the first of which is at `first_place`."""
        places = slice(first_place, first_place + x.shape[-2])
        return x * self.cos[places].to(x.dtype) + x.roll(self.shift, dims=-1) * self.sin[places].to(x.dtype)


def check_rotary(position: str, width: int, heads: int) -> None:
    """Reject heads whose numbers cannot be rotated in pairs."""
    if position == "rotary" and width // heads % 2:
        raise SpecError(
            "rotary positions need heads of an even width.",
            got=f"width={width}, heads={heads}.",
            hint="other heads, or position=learned.",
        )
