"""Windows on a grid: each cell and the k x k cells around it, in memory that grows with the number of cells.

A window is cut off at the borders of the grid: a cell beyond them is not visible. The grid is cut into blocks of cells;
the cells of a block share a halo, the smallest rectangle with the windows of all of them, so that scores are matrix
products of a block with its halo (Vaswani et al., HaloNet, arXiv 2103.12731, section 2.2). Which cells of its halo a
cell may see is `visible`; where they lie in its window is `offsets`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from vitrail.errors import SpecError
from vitrail.tokens import format_size


class Windows(NamedTuple):
    """The windows of a grid's cells, in blocks of `block` x `block` cells; `G` blocks, `b` cells, `h` halo cells."""

    grid: tuple[int, int]
    window: int
    block: int

    @property
    def halo(self) -> int:
        """The side of a halo."""
        return self.block + self.window - 1

    @property
    def num_blocks(self) -> tuple[int, int]:
        """The number of blocks in each direction; the last ones may reach beyond the grid."""
        rows, columns = self.grid
        return -(-rows // self.block), -(-columns // self.block)

    def to_blocks(self, x: Float[Tensor, "B H N E"]) -> Float[Tensor, "B*G H b E"]:
        """Arrange cells by block; places beyond the grid are zeros."""
        return rearrange(
            self._pad(x, before=0, side=self.block),
            "B H (gy by) (gx bx) E -> (B gy gx) H (by bx) E",
            by=self.block,
            bx=self.block,
        )

    def from_blocks(self, x: Float[Tensor, "B*G H b E"]) -> Float[Tensor, "B H N E"]:
        """Undo `to_blocks`."""
        rows, columns = self.num_blocks
        image = rearrange(
            x, "(B gy gx) H (by bx) E -> B H (gy by) (gx bx) E", gy=rows, gx=columns, by=self.block, bx=self.block
        )
        return image[:, :, : self.grid[0], : self.grid[1]].flatten(2, 3)

    def to_halos(self, x: Float[Tensor, "B H N E"]) -> Float[Tensor, "B*G H h E"]:
        """Arrange the cells around each block; places beyond the grid are zeros."""
        image = self._pad(x, before=self.window // 2, side=self.halo)
        halos = image.unfold(2, self.halo, self.block).unfold(3, self.halo, self.block)
        return rearrange(halos, "B H gy gx E hy hx -> (B gy gx) H (hy hx) E")

    def _pad(self, x: Float[Tensor, "B H N E"], *, before: int, side: int) -> Float[Tensor, "B H Y X E"]:
        """Pad the grid so that squares of this side, one for each block, cover it."""
        pads = [0, 0]
        for cells, blocks in zip(reversed(self.grid), reversed(self.num_blocks), strict=True):
            pads += [before, (blocks - 1) * self.block + side - before - cells]
        return F.pad(x.reshape(*x.shape[:2], *self.grid, x.shape[3]), pads)

    def visible(self, device: torch.device | str = "cpu") -> Bool[Tensor, "G b h"]:
        """Which cells of its halo each cell of a block may see: those of the grid that are in its window."""
        inside = self.offsets(device) >= 0
        exists = self.to_halos(torch.ones(1, 1, self.grid[0] * self.grid[1], 1, device=device))[:, 0, None, :, 0] > 0
        return inside & exists

    def offsets(self, device: torch.device | str = "cpu") -> Int64[Tensor, "b h"]:
        """The place of each halo cell in the window of each cell, numbered by row; -1 outside the window."""
        cells, around = (torch.arange(side, device=device) for side in (self.block, self.halo))
        steps = around[None, :] - cells[:, None]  # from the window's first row to this one
        within = (steps >= 0) & (steps < self.window)
        place = steps[:, None, :, None] * self.window + steps[None, :, None, :]
        place = place.masked_fill(~(within[:, None, :, None] & within[None, :, None, :]), -1)
        return place.flatten(2, 3).flatten(0, 1)


def neighbours(x: Float[Tensor, "B C Y X"], window: int, stride: int = 1) -> Float[Tensor, "B C k Y2 X2"]:
    """The cells of each window, in rows; those beyond the grid are zeros. For layers whose scores are no products."""
    batch, channels, *grid = x.shape
    rows, columns = (-(-side // stride) for side in grid)
    cells = F.unfold(x, window, padding=window // 2, stride=stride)
    return cells.view(batch, channels, window * window, rows, columns)


def check_window(window: int, grid: tuple[int, ...], *, otherwise: str = "attention=full") -> None:
    """Reject a window without a middle, or one that is larger than the grid; the hint names what else there is."""
    if window < 1 or window % 2 == 0:
        odd = max(1, window + 1 - window % 2)
        raise SpecError("window must be odd, so that it has a middle.", got=f"window={window}.", hint=f"window={odd}.")
    if len(grid) != 2:
        raise SpecError(
            "a window needs a grid of rows and columns.",
            got=f"a grid of {format_size(grid)}.",
            hint=f"{otherwise}.",
        )
    smallest = min(grid)
    if window > smallest:
        fitting = smallest - 1 + smallest % 2
        hint = f"window={fitting}, or {otherwise}."
        raise SpecError(
            "window must not exceed the grid.", got=f"window={window}, a grid of {format_size(grid)}.", hint=hint
        )
