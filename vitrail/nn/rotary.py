"""Rotary position embedding: queries and keys are rotated by their places (Su et al., arXiv 2104.09864, equation 34).

The product of a query and a key then depends on their distance only. The two numbers of a rotated pair are half a head
apart, as in GPT-NeoX and Llama.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import SpecError

BASE = 10000.0


def rotate(
    q: Float[Tensor, "B H N E"], k: Float[Tensor, "B H N E"], first_place: int = 0
) -> tuple[Float[Tensor, "B H N E"], Float[Tensor, "B H N E"]]:
    """Rotate the queries and keys of tokens in a row, the first of which is at `first_place`."""
    cos, sin = angles(q.shape[-2], q.shape[-1], first_place, like=q)
    return _rotate_one(q, cos, sin), _rotate_one(k, cos, sin)


def angles(
    num: int, width: int, first_place: int, *, like: Tensor
) -> tuple[Float[Tensor, "N E"], Float[Tensor, "N E"]]:
    """The cosines and sines of `num` places for heads of this width, an even number."""
    rate = BASE ** (-torch.arange(0, width, 2, dtype=torch.float32, device=like.device) / width)
    place = torch.arange(first_place, first_place + num, dtype=torch.float32, device=like.device)
    angle = torch.outer(place, rate).repeat(1, 2)
    return angle.cos().to(like.dtype), angle.sin().to(like.dtype)


def _rotate_one(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def check_rotary(position: str, width: int, heads: int) -> None:
    """Reject heads whose numbers cannot be rotated in pairs."""
    if position == "rotary" and width // heads % 2:
        raise SpecError(
            "rotary positions need heads of an even width.",
            got=f"width={width}, heads={heads}.",
            hint="other heads, or position=learned.",
        )
