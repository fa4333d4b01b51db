"""Tokens and their layout: the narrow waist between what cuts a picture up and what thinks about the pieces.

The legend of dimensions, used in every signature of the package:

    B batch   N tokens   M context tokens   D width   H heads   E width of a head   F hidden width
    C channels   T frames   Y X rows and columns   P patch side   V vocabulary   K classes

Both types are named tuples, because these are what torch.compile, torch.export, activation checkpointing
and FSDP look into by themselves: nothing needs to be registered, at import or elsewhere.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor

from vitrail.errors import ShapeError


class Layout(NamedTuple):
    """Where each token came from: `prefix` tokens of no place, then the cells of `grid` in row-major order."""

    grid: tuple[int, ...]
    prefix: int = 0

    @property
    def num_cells(self) -> int:
        """The number of tokens that have a place in the grid."""
        return math.prod(self.grid)

    @property
    def num_tokens(self) -> int:
        """The number of all tokens, prefix included."""
        return self.prefix + self.num_cells


class Tokens(NamedTuple):
    """A batch of token sequences; `mask` is True where a token is real and False where it is padding."""

    x: Float[Tensor, "B N D"]
    layout: Layout
    mask: Bool[Tensor, "B N"] | None = None

    def with_x(self, x: Float[Tensor, "B N D"]) -> Tokens:
        """The same places and the same padding, with other vectors."""
        return Tokens(x, self.layout, self.mask)

    @property
    def cells(self) -> Float[Tensor, "B Y*X D"]:
        """The tokens of the grid alone, without the prefix."""
        return self.x[:, self.layout.prefix :]


def cut(size: tuple[int, ...], cell: tuple[int, ...]) -> tuple[int, ...]:
    """The grid of equal cells that an input of this size is cut into, or an error that names sizes that work."""
    if len(size) != len(cell):
        raise ShapeError(
            f"patches of {len(cell)} dimensions cannot be cut from an input of {len(size)}.",
            got=f"size {by(size)}, patch {by(cell)}.",
        )
    if any(side < step or side % step for side, step in zip(size, cell, strict=True)):
        below = by(tuple(max(side // step, 1) * step for side, step in zip(size, cell, strict=True)))
        above = by(tuple(-(-side // step) * step for side, step in zip(size, cell, strict=True)))
        raise ShapeError(
            "the patch must divide the image size.",
            got=f"image size {by(size)}, patch {by(cell)}.",
            hint=f"{above}." if below == above else f"{below} or {above}.",
        )
    return tuple(side // step for side, step in zip(size, cell, strict=True))


def check_image(image: Tensor, channels: int) -> None:
    """Refuse what is no batch of pictures with this many channels, and say how it could become one."""
    right = image.ndim == 4 and image.shape[1] == channels
    if right and image.is_floating_point():
        return
    if right:
        hint = "Preprocess, or image.float() / 255 and the model's own mean and deviation."
    elif image.ndim == 4 and image.shape[-1] == channels:
        hint = "image.permute(0, 3, 1, 2), which puts channels before rows."
    elif image.ndim == 3:
        hint = "image[None], a batch of one."
    else:
        hint = f"channels={image.shape[1]} when the model is made." if image.ndim == 4 else ""
    raise ShapeError(
        f"the model takes floating-point pictures of shape [batch, {channels}, rows, columns].",
        got=f"{list(image.shape)} of {image.dtype}.",
        hint=hint,
    )


def by(numbers: tuple[int, ...]) -> str:
    """Sizes as people write them: 14 x 14."""
    return " x ".join(map(str, numbers))
