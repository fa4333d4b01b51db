"""Position embeddings: fixed sine-cosine tables, and resizing of learned tables.

Vaswani et al., arXiv 1706.03762, section 3.5 (1-D); Bardes et al., arXiv 2404.08471 (3-D); Dosovitskiy et al.,
arXiv 2010.11929, section 3.2 (resizing).
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import ShapeError, SpecError, unknown_name
from vitrail.tokens import Layout, format_size

Position = Literal["learned", "sincos_1d", "sincos_2d", "sincos_3d", "rotary_2d", "none"]
ResizeRule = Literal["bicubic", "zoom"]


def sincos_1d(num_positions: int, width: int) -> Float[Tensor, "N D"]:
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)) and PE(pos, 2i+1) = cos(pos / 10000^(2i/D))."""
    if width % 2:
        raise SpecError("a sine-cosine table needs an even width.", got=f"width={width}.", hint=f"width={width + 1}.")
    position = torch.arange(num_positions, dtype=torch.float64, device="cpu")
    rate = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64, device="cpu") / width)
    angle = torch.outer(position, rate)
    return rearrange(torch.stack([angle.sin(), angle.cos()], dim=-1), "N i two -> N (i two)").float()


def sincos_2d(grid: tuple[int, int], width: int) -> Float[Tensor, "N D"]:
    """Sines and cosines of the column, then of the row, each in a quarter of the width (MoCo v3, big_vision)."""
    if width % 4 or width < 8:
        wider = max(8, width + 4 - width % 4)
        raise SpecError(
            "a 2-D sine-cosine table needs a width divisible by 4, at least 8.",
            got=f"width={width}.",
            hint=f"width={wider}.",
        )
    return _sines(grid, (width // 4, width // 4))


def sincos_3d(grid: tuple[int, int, int], width: int) -> Float[Tensor, "N D"]:
    """Sines and cosines of column and row, in a quarter of the width each, and of the frame, in half of it (V-JEPA)."""
    if width % 8 or width < 16:
        wider = max(16, width + 8 - width % 8)
        raise SpecError(
            "a 3-D sine-cosine table needs a width divisible by 8, at least 16.",
            got=f"width={width}.",
            hint=f"width={wider}.",
        )
    return _sines(grid, (width // 4, width // 8, width // 8))


def _sines(grid: tuple[int, ...], num_rates: tuple[int, ...]) -> Float[Tensor, "N D"]:
    """Sines and cosines of each coordinate at so many rates, the last coordinate first."""
    parts: list[Tensor] = []
    for axis in reversed(range(len(grid))):
        num = num_rates[axis]
        rate = 10000.0 ** (-torch.arange(num, dtype=torch.float64, device="cpu") / (num - 1))
        angle = torch.outer(torch.arange(grid[axis], dtype=torch.float64, device="cpu"), rate)
        angle = repeat(
            angle, "n i -> (before n after) i", before=math.prod(grid[:axis]), after=math.prod(grid[axis + 1 :])
        )
        parts += [angle.sin(), angle.cos()]
    return torch.cat(parts, dim=1).float()


def fixed_table(kind: Position, grid: tuple[int, ...], width: int) -> Float[Tensor, "1 N D"] | None:
    """Build a sine-cosine table, or None for another kind; `sincos_1d` numbers the cells of any grid in order."""
    if kind == "sincos_1d":
        return sincos_1d(math.prod(grid), width)[None]
    if kind == "sincos_2d":
        rows, columns = grid
        return sincos_2d((rows, columns), width)[None]
    if kind == "sincos_3d":
        frames, rows, columns = grid
        return sincos_3d((frames, rows, columns), width)[None]
    return None


def check_position(kind: Position, grid: tuple[int, ...]) -> None:
    """Reject a kind of position that does not fit the dimensions of the grid."""
    num_dims = {"sincos_2d": 2, "sincos_3d": 3, "rotary_2d": 2}.get(kind, len(grid))
    if num_dims != len(grid):
        raise SpecError(
            f"position={kind} needs a grid of {num_dims} dimensions.",
            got=f"a grid of {format_size(grid)}.",
            hint=f"position=sincos_{len(grid)}d.",
        )


def resize_table(
    table: Float[Tensor, "1 N D"], old: Layout, new: Layout, rule: ResizeRule = "bicubic"
) -> Float[Tensor, "1 M D"]:
    """Resize a position table from one grid to another of as many dimensions; prefix rows stay unchanged.

    `zoom` is the paper's rule (`ndimage.zoom(order=1)`: linear in each dimension, corners stay corners). `bicubic`,
    with antialiasing, is the rule of timm and most code since; in three dimensions, for which PyTorch has no cubic
    kernel, it is trilinear. The results differ, so a run records its rule.
    """
    if table.shape[1] != old.num_tokens or old.prefix != new.prefix or len(old.grid) != len(new.grid):
        raise ShapeError(
            "the position table does not fit its layout.",
            got=f"{table.shape[1]} rows for {old}, to be resized to {new}.",
        )
    if rule not in get_args(ResizeRule):
        raise unknown_name("resize rule", rule, get_args(ResizeRule))
    if old == new:
        return table
    prefix, cells = table[:, : old.prefix], table[:, old.prefix :]
    size, new_size = ((1, *grid) if len(grid) == 1 else grid for grid in (old.grid, new.grid))  # a row is an image too
    # The usual channels-last strides: with others, PyTorch's antialiasing repeats the first row of a single column.
    image = cells.reshape(1, *size, -1).movedim(-1, 1)
    image = image.to(torch.promote_types(image.dtype, torch.float32))  # antialiasing does not support half precision
    # Sizes, never scale factors: with 37/14 as a float, a row is lost (dinov2 #378, dino #8).
    if len(size) == 3:
        image = F.interpolate(image, size=new_size, mode="trilinear", align_corners=rule == "zoom")
    elif rule == "zoom":
        image = F.interpolate(image, size=new_size, mode="bilinear", align_corners=True)
    else:
        image = F.interpolate(image, size=new_size, mode="bicubic", align_corners=False, antialias=True)
    return torch.cat([prefix, image.movedim(1, -1).flatten(1, -2).to(table.dtype)], dim=1)
