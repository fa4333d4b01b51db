"""Position embeddings: fixed sine-cosine tables, and resizing of learned tables.

Vaswani et al., arXiv 1706.03762, section 3.5 (1-D); Dosovitskiy et al., arXiv 2010.11929, section 3.2 (resizing).
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import ShapeError, SpecError, unknown_name
from vitrail.tokens import Layout

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
    rows, columns = (torch.arange(size, dtype=torch.float64, device="cpu") for size in grid)
    quarter = width // 4
    rate = 10000.0 ** (-torch.arange(quarter, dtype=torch.float64, device="cpu") / (quarter - 1))
    y = repeat(torch.outer(rows, rate), "Y q -> (Y X) q", X=grid[1])
    x = repeat(torch.outer(columns, rate), "X q -> (Y X) q", Y=grid[0])
    return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=1).float()


def resize_table(
    table: Float[Tensor, "1 N D"], old: Layout, new: Layout, rule: ResizeRule = "bicubic"
) -> Float[Tensor, "1 M D"]:
    """Resize a position table from one 2-D grid to another; prefix rows stay unchanged.

    `zoom` is the paper's rule (`ndimage.zoom(order=1)`: bilinear, corners stay corners). `bicubic`, with antialiasing,
    is the rule of timm and most code since. The results differ, so a run records its rule.
    """
    if table.shape[1] != old.num_tokens or old.prefix != new.prefix:
        raise ShapeError(
            "the position table does not fit its layout.",
            got=f"{table.shape[1]} rows for {old}, to be resized to {new}.",
        )
    if rule not in get_args(ResizeRule):
        raise unknown_name("resize rule", rule, get_args(ResizeRule))
    if old == new:
        return table
    prefix, cells = table[:, : old.prefix], table[:, old.prefix :]
    rows, columns = old.grid
    image = rearrange(cells, "one (Y X) D -> one D Y X", Y=rows, X=columns)
    image = image.to(torch.promote_types(image.dtype, torch.float32))  # antialiasing does not support half precision
    # Sizes, never scale factors: with 37/14 as a float, a row is lost (dinov2 #378, dino #8).
    if rule == "zoom":
        image = F.interpolate(image, size=new.grid, mode="bilinear", align_corners=True)
    else:
        image = F.interpolate(image, size=new.grid, mode="bicubic", align_corners=False, antialias=True)
    return torch.cat([prefix, rearrange(image, "one D Y X -> one (Y X) D").to(table.dtype)], dim=1)
