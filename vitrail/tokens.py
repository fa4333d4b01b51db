"""Tokens and their layout: the interface between stems, which cut an image into tokens, and encoders.

The dimensions in the package's signatures:

    B batch   N tokens   M context tokens   D width   H heads   E width of a head   F hidden width
    C channels   T frames   Y X rows and columns   P patch side   V vocabulary   K classes

Both types are named tuples, because torch.compile, torch.export, activation checkpointing and FSDP traverse those
without any registration.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor

from vitrail.errors import ShapeError


class Layout(NamedTuple):
    """Where each token comes from: `prefix` tokens without a place, then the cells of `grid` in row-major order."""

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


class Tokens(NamedTuple):
    """A batch of token sequences; `mask` is True for real tokens and False for padding."""

    x: Float[Tensor, "B N D"]
    layout: Layout
    mask: Bool[Tensor, "B N"] | None = None

    def with_x(self, x: Float[Tensor, "B N D"]) -> Tokens:
        """Replace the vectors; keep layout and mask."""
        return Tokens(x, self.layout, self.mask)

    @property
    def cells(self) -> Float[Tensor, "B Y*X D"]:
        """The tokens of the grid, without the prefix."""
        return self.x[:, self.layout.prefix :]


def cut(size: tuple[int, ...], cell: tuple[int, ...]) -> tuple[int, ...]:
    """Return the grid of equal cells that an input of this size divides into; the error suggests sizes that work."""
    if len(size) != len(cell):
        raise ShapeError(
            f"patches of {len(cell)} dimensions cannot be cut from an input of {len(size)}.",
            got=f"size {format_size(size)}, patch {format_size(cell)}.",
        )
    if any(side < step or side % step for side, step in zip(size, cell, strict=True)):
        below = format_size(tuple(max(side // step, 1) * step for side, step in zip(size, cell, strict=True)))
        above = format_size(tuple(-(-side // step) * step for side, step in zip(size, cell, strict=True)))
        raise ShapeError(
            "the patch must divide the image size.",
            got=f"image size {format_size(size)}, patch {format_size(cell)}.",
            hint=f"{above}." if below == above else f"{below} or {above}.",
        )
    return tuple(side // step for side, step in zip(size, cell, strict=True))


def check_image(image: Tensor, channels: int) -> None:
    """Reject anything but a float batch with this many channels; the hint says how to get one."""
    right_shape = image.ndim == 4 and image.shape[1] == channels
    if right_shape and image.is_floating_point():
        return
    if right_shape:
        hint = "model.preprocess, or image.float() / 255, normalised by the model's mean and std."
    elif image.ndim == 4 and image.shape[-1] == channels:
        hint = "image.permute(0, 3, 1, 2), which puts channels before rows."
    elif image.ndim == 3:
        hint = "image[None], a batch of one."
    else:
        hint = f"channels={image.shape[1]} when creating the model." if image.ndim == 4 else ""
    raise ShapeError(
        f"the model takes floating-point images of shape [batch, {channels}, rows, columns].",
        got=f"{list(image.shape)} of {image.dtype}.",
        hint=hint,
    )


def format_size(size: tuple[int, ...]) -> str:
    """Format a size for people: 14 x 14."""
    return " x ".join(map(str, size))
