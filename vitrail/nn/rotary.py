"""Rotary position embedding: queries and keys are rotated by their places (Su et al., arXiv 2104.09864, equation 34).

The product of a query and a key then depends on their distance only. The two numbers of a rotated pair are half a head
apart, as in GPT-NeoX, Llama and DINOv3. In two dimensions (DINOv3, arXiv 2508.10104, section 3.2), half of the pairs
turn with the row, half with the column, and an image spans -1 to 1 whatever its number of patches.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import SpecError
from vitrail.tokens import Layout, Tokens

BASE = 10000.0
BASE_2D = 100.0
HEAD_WIDTHS = {"rotary": (2, "an even width"), "rotary_2d": (4, "a width divisible by 4")}


class Rotary(nn.Module):
    """Rotates vectors by their places in a row, up to `num_places`; one instance serves all layers of a model."""

    cos: Float[Tensor, "M E"]
    sin: Float[Tensor, "M E"]

    def __init__(self, *, num_places: int, width: int) -> None:
        super().__init__()
        rate = BASE ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
        cos, sin = _cos_and_sin(torch.outer(torch.arange(num_places, dtype=torch.float32), rate))
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x: Float[Tensor, "... N E"], tokens: Tokens, first_place: int = 0) -> Float[Tensor, "... N E"]:
        """Rotate vectors of `tokens`, the first of which is at `first_place`."""
        places = slice(first_place, first_place + tokens.x.shape[1])
        return rotate(x, self.cos[places], self.sin[places])


class Rotary2d(nn.Module):
    """Rotates vectors by their places in a grid; prefix tokens, which have no place, stay as they are.

    The angles for `layout` are computed once; those for another grid when it is met.
    """

    cos: Float[Tensor, "N E"]
    sin: Float[Tensor, "N E"]

    def __init__(self, *, layout: Layout, width: int) -> None:
        super().__init__()
        self.width = width
        self.fit(layout)

    def fit(self, layout: Layout) -> None:
        """Keep the angles for this layout."""
        self.layout: Layout | None = layout
        like = self._buffers.get("cos")
        cos, sin = _cos_and_sin(_angles(layout, self.width, torch.device("cpu")))  # also for a model on meta
        self.register_buffer("cos", cos if like is None else cos.to(like), persistent=False)
        self.register_buffer("sin", sin if like is None else sin.to(like), persistent=False)

    def forward(
        self,
        x: Float[Tensor, "... B H N E"],
        tokens: Tokens,
        first_place: int = 0,  # noqa: ARG002 - only a row is decoded step by step
    ) -> Float[Tensor, "... B H N E"]:
        """Rotate vectors of `tokens`, which may be a subset of the grid."""
        cos, sin = self.cos, self.sin
        if self.layout is None or tokens.layout != self.layout:
            cos, sin = _cos_and_sin(_angles(tokens.layout, self.width, x.device))
        if tokens.places is not None:
            rows = tokens.layout.rows(tokens.places)
            cos, sin = cos[rows][:, None], sin[rows][:, None]  # B 1 N E
        return rotate(x, cos, sin)


def _angles(layout: Layout, width: int, device: torch.device) -> Float[Tensor, "N half_E"]:
    """2 pi y / 100^(4i/E) for each token, then the same of x; y and x are the centre of its cell, from -1 to 1."""
    num_rates = width // 4
    exponent = torch.arange(num_rates, dtype=torch.float32, device=device) / num_rates
    rate = 2 * math.pi * BASE_2D ** (-exponent)
    rows, columns = (
        ((torch.arange(num, dtype=torch.float32, device=device) + 0.5) / num * 2 - 1)[:, None] * rate
        for num in layout.grid
    )
    grid = (*layout.grid, -1)
    cells = torch.cat([rows[:, None].expand(grid), columns[None].expand(grid)], dim=2).flatten(0, 1)
    return F.pad(cells, (0, 0, layout.prefix, 0))  # prefix tokens are not rotated


def _cos_and_sin(angle: Float[Tensor, "N half_E"]) -> tuple[Float[Tensor, "N E"], Float[Tensor, "N E"]]:
    """The factors of each number and of its partner."""
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([cos, cos], dim=1), torch.cat([-sin, sin], dim=1)


def rotate(x: Float[Tensor, "... N E"], cos: Tensor, sin: Tensor) -> Float[Tensor, "... N E"]:
    """Rotate pairs of numbers half a width apart, by the factors of `_cos_and_sin`."""
    return x * cos.to(x.dtype) + x.roll(x.shape[-1] // 2, dims=-1) * sin.to(x.dtype)


def check_rotary(position: str, width: int, heads: int) -> None:
    """Reject heads whose numbers cannot be rotated in pairs, or in pairs of pairs."""
    divisor, wanted = HEAD_WIDTHS.get(position, (1, ""))
    if width // heads % divisor:
        raise SpecError(
            f"{position} positions need heads of {wanted}.",
            got=f"width={width}, heads={heads}.",
            hint="other heads, or position=learned.",
        )
