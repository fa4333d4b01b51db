"""Images as grids of patches: cut, put together again, hidden."""

from __future__ import annotations

import torch
from einops import rearrange
from jaxtyping import Float, Int64
from torch import Tensor

from vitrail.tokens import cut


def cut_patches(image: Float[Tensor, "B C Y X"], cell: tuple[int, ...]) -> Float[Tensor, "B N P Q C"]:
    """The patches of each image in row-major order, each with its rows, columns and channels."""
    rows, columns = cell
    cut((image.shape[2], image.shape[3]), cell)
    return rearrange(image, "B C (y P) (x Q) -> B (y x) P Q C", P=rows, Q=columns)


def join_patches(patches: Float[Tensor, "B N P Q C"], grid: tuple[int, ...]) -> Float[Tensor, "B C Y X"]:
    """Put the patches of each image together again."""
    return rearrange(patches, "B (y x) P Q C -> B C (y P) (x Q)", y=grid[0], x=grid[1])


def hide_patches(
    image: Float[Tensor, "B C Y X"],
    cell: tuple[int, ...],
    hidden: Int64[Tensor, "B M"],
    shown: Int64[Tensor, "B M"],
) -> Float[Tensor, "B C Y X"]:
    """Show other patches at the hidden places: those at the places `shown`, zeros where that is negative.

    Hidden before the stem, because a convolutional stem looks across the border of a patch.
    """
    grid = cut((image.shape[2], image.shape[3]), cell)
    patches = cut_patches(image, cell)
    rows = torch.arange(len(image), device=image.device)[:, None]
    instead = patches[rows, shown.clamp(min=0)] * (shown >= 0)[:, :, None, None, None]
    return join_patches(patches.index_put((rows, hidden), instead), grid)
