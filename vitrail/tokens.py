"""Tokens and their layout: the interface between stems, which cut an input into tokens, and encoders.

The dimensions in the package's signatures:

    B batch   N tokens   M context tokens   D width   H heads   E width of a head   F hidden width
    C channels   T frames   Y X rows and columns   P patch side   V vocabulary   K classes

Both types are named tuples, because torch.compile, torch.export, activation checkpointing and FSDP traverse those
without any registration.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from vitrail.errors import ShapeError

AXES = {1: ("length",), 2: ("rows", "columns"), 3: ("frames", "rows", "columns")}


class Layout(NamedTuple):
    """Where each token comes from: `prefix` tokens without a place, then the cells of `grid` in row-major order.

    The grid has one dimension for text and sound, two for images, three for video.
    """

    grid: tuple[int, ...]
    prefix: int = 0

    @property
    def num_cells(self) -> int:
        """The number of tokens with a place in the grid."""
        return math.prod(self.grid)

    @property
    def num_tokens(self) -> int:
        """The total number of tokens, prefix included."""
        return self.prefix + self.num_cells

    def rows(self, cells: Int64[Tensor, "B n"]) -> Int64[Tensor, "B N"]:
        """Return which of all tokens a subset holds: the whole prefix, then these cells."""
        prefix = torch.arange(self.prefix, device=cells.device).expand(cells.shape[0], -1)
        return torch.cat([prefix, cells + self.prefix], dim=1)


class Tokens(NamedTuple):
    """A batch of token sequences; `mask` is True for real tokens and False for padding.

    `places` says which cells of the layout's grid a subset holds, in the order of the tokens; None means all cells.
    """

    x: Float[Tensor, "B N D"]
    layout: Layout
    mask: Bool[Tensor, "B N"] | None = None
    places: Int64[Tensor, "B n"] | None = None

    def with_x(self, x: Float[Tensor, "B N D"]) -> Tokens:
        """Replace the vectors; keep layout, mask and places."""
        return self._replace(x=x)

    @property
    def cells(self) -> Float[Tensor, "B n D"]:
        """The tokens of the grid, without the prefix."""
        return self.x[:, self.layout.prefix :]

    def keep(self, indices: Int64[Tensor, "B n"]) -> Tokens:
        """Keep these cells of each sample and all prefix tokens, as masked training and DropToken do.

        `indices` count the cells that are there; if those are a subset already, `places` still names cells of the grid.
        Keep cells after positions were added, so that they still know where they were.
        """
        batch = self.x.shape[0]
        if indices.ndim != 2 or indices.shape[0] != batch or indices.dtype != torch.int64:
            raise ShapeError(
                "keep takes one row of cell indices per sample.",
                got=f"{list(indices.shape)} of {indices.dtype} for {batch} samples.",
                hint=f"int64 indices of shape [{batch}, number of cells to keep].",
            )
        places = indices if self.places is None else self.places.gather(1, indices)
        rows = self.layout.rows(indices)
        return Tokens(
            self.x.gather(1, rows[:, :, None].expand(-1, -1, self.x.shape[2])),
            self.layout,
            None if self.mask is None else self.mask.gather(1, rows),
            places,
        )

    def require_grid(self, reader: str) -> None:
        """Reject a subset on behalf of code that needs every cell of the grid in its place."""
        if self.places is not None:
            raise ShapeError(
                f"{reader} needs every cell of the grid.",
                got=f"{self.places.shape[1]} of {self.layout.num_cells} cells.",
                hint="the tokens as tokenize returned them, before keep.",
            )


def cut(size: tuple[int, ...], cell: tuple[int, ...]) -> tuple[int, ...]:
    """Return the grid of equal cells that an input of this size divides into; the error suggests sizes that work."""
    if len(size) != len(cell):
        raise ShapeError(
            f"patches of {len(cell)} dimension{'s' * (len(cell) > 1)} cannot be cut from an input of {len(size)}.",
            got=f"size {format_size(size)}, patch {format_size(cell)}.",
            hint=f"{[cell[0]] * len(size)}, one side for each axis.",
        )
    if any(side < step or side % step for side, step in zip(size, cell, strict=True)):
        below = format_size(tuple(max(side // step, 1) * step for side, step in zip(size, cell, strict=True)))
        above = format_size(tuple(-(-side // step) * step for side, step in zip(size, cell, strict=True)))
        kind = "image" if len(size) == 2 else "input"
        raise ShapeError(
            f"the patch must divide the {kind} size.",
            got=f"{kind} size {format_size(size)}, patch {format_size(cell)}.",
            hint=f"{above}." if below == above else f"{below} or {above}.",
        )
    return tuple(side // step for side, step in zip(size, cell, strict=True))


def check_input(x: Tensor, channels: int, num_dims: int = 2) -> None:
    """Reject anything but a float batch with this many channels and dimensions; the hint says how to get one."""
    kind = "image" if num_dims == 2 else "input"
    full = x.ndim == num_dims + 2
    if full and x.shape[1] == channels and x.is_floating_point():
        return
    hint = ""
    if full and x.shape[1] == channels:
        hint = f"{kind}.float(), normalised as in training."
        if num_dims == 2:
            hint = "model.preprocess, or image.float() / 255, normalised by the model's mean and std."
    elif full and x.shape[-1] == channels:
        order = ", ".join(map(str, (0, num_dims + 1, *range(1, num_dims + 1))))
        hint = f"{kind}.permute({order}), which puts channels before {AXES[num_dims][0]}."
    elif x.ndim == num_dims + 1:
        hint = f"{kind}[None], a batch of one."
    elif full:
        hint = f"channels={x.shape[1]} when creating the model."
    raise ShapeError(
        f"the model takes floating-point {kind}s of shape [batch, {channels}, {', '.join(AXES[num_dims])}].",
        got=f"{list(x.shape)} of {x.dtype}.",
        hint=hint,
    )


def format_size(size: tuple[int, ...]) -> str:
    """Format a size for people: 14 x 14."""
    return " x ".join(map(str, size))
