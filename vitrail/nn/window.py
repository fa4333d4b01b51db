"""Windows on a grid: each cell and the k x k cells around it, in memory that grows with the number of cells.

A window is cut off at the borders of the grid: a cell beyond them is not visible. The grid is cut into blocks of cells;
the cells of a block share a halo, the smallest rectangle with the windows of all of them, so that scores are matrix
products of a block with its halo (Vaswani et al., HaloNet, arXiv 2103.12731, section 2.2). Which cells of its halo a
cell may see is `visible`; where they lie in its window is `offsets`.

Cells are gathered by their number: a gather's gradient is 5 to 10 times as fast as that of `Tensor.unfold`, and 2 to 4
times as that of slices put side by side. Places beyond the grid hold any cell, because nobody sees them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from vitrail.errors import SpecError
from vitrail.tokens import format_size

BLOCK = 8
"""The side of a block: the fastest, or close to it, for windows of 3 to 9 and grids of 16 to 128 on a CPU."""


class Windows(NamedTuple):
    """The windows of all cells of a grid, in square blocks: `G` blocks of `b` cells, each with a halo of `h` cells."""

    grid: tuple[int, int]
    window: int
    block: int = BLOCK

    @property
    def halo(self) -> int:
        """The side of a halo."""
        return self.block + self.window - 1

    @property
    def num_blocks(self) -> tuple[int, int]:
        """The number of blocks in each direction; the last ones may reach beyond the grid."""
        rows, columns = (cells + self.block - 1 for cells in self.grid)  # ONNX rounds -14 / 8 towards zero
        return rows // self.block, columns // self.block

    def block_cells(self, device: torch.device | str = "cpu") -> Int64[Tensor, "G b"]:
        """The number of each cell of each block."""
        return self._number(self.block, 0, device)

    def halo_cells(self, device: torch.device | str = "cpu") -> Int64[Tensor, "G h"]:
        """The number of each cell around each block, the block included."""
        return self._number(self.halo, self.window // 2, device)

    def _number(self, side: int, before: int, device: torch.device | str) -> Int64[Tensor, "G s"]:
        """The numbers of the cells of squares that begin `before` cells before each block."""
        rows, columns = (
            self._places(axis, side, before, device).clamp(0, cells - 1) for axis, cells in enumerate(self.grid)
        )
        return rearrange(
            rows[:, None, :, None] * self.grid[1] + columns[None, :, None, :], "gy gx sy sx -> (gy gx) (sy sx)"
        )

    def _places(self, axis: int, side: int, before: int, device: torch.device | str) -> Int64[Tensor, "g s"]:
        """The places on one axis of the grid, possibly beyond it, that squares cover."""
        starts = torch.arange(self.num_blocks[axis], device=device) * self.block - before
        return starts[:, None] + torch.arange(side, device=device)

    def place_in_blocks(self, device: torch.device | str = "cpu") -> Int64[Tensor, " n"]:
        """Where each cell of the grid stands among the cells of all blocks; undoes `block_cells`."""
        rows, columns = (torch.arange(cells, device=device) for cells in self.grid)
        block = (rows // self.block)[:, None] * self.num_blocks[1] + columns // self.block
        return (block * self.block**2 + (rows % self.block)[:, None] * self.block + columns % self.block).flatten()

    def visible(self, device: torch.device | str = "cpu") -> Bool[Tensor, "G b h"]:
        """Which cells of its halo each cell of a block may see: those of the grid that are in its window."""
        within = self.steps(device) >= 0
        rows, columns = (
            within & ((places >= 0) & (places < cells))[:, None]
            for places, cells in (
                (self._places(axis, self.halo, self.window // 2, device), cells) for axis, cells in enumerate(self.grid)
            )
        )
        both = rows[:, None, :, None, :, None] & columns[None, :, None, :, None, :]
        return rearrange(both, "gy gx by bx hy hx -> (gy gx) (by bx) (hy hx)")

    def offsets(self, device: torch.device | str = "cpu") -> Int64[Tensor, "b h"]:
        """The place of each halo cell in the window of each cell, numbered by row; -1 outside the window."""
        steps = self.steps(device)
        rows, columns = steps[:, None, :, None], steps[None, :, None, :]
        place = (rows * self.window + columns).masked_fill(~((rows >= 0) & (columns >= 0)), -1)
        return rearrange(place, "by bx hy hx -> (by bx) (hy hx)")

    def steps(self, device: torch.device | str = "cpu") -> Int64[Tensor, "b h"]:
        """On one axis, the place of each halo cell in the window of each cell of a block; -1 outside the window."""
        cells, around = (torch.arange(side, device=device) for side in (self.block, self.halo))
        steps = around - cells[:, None]
        return steps.masked_fill(steps >= self.window, -1).clamp(min=-1)


def gather_cells(x: Float[Tensor, "B H N E"], cells: Int64[Tensor, "G s"]) -> Float[Tensor, "B H G s E"]:
    """The cells of each block or halo, by their numbers."""
    return x.index_select(2, cells.flatten()).reshape(*x.shape[:2], *cells.shape, x.shape[3])


def count_visible(grid: tuple[int, ...], window: int) -> int:
    """The number of pairs of a cell and a visible cell: windows are smaller at the borders."""
    along = [
        sum(min(place, window // 2) + 1 + min(side - 1 - place, window // 2) for place in range(side)) for side in grid
    ]
    return math.prod(along)


def neighbours(x: Float[Tensor, "B C Y X"], window: int) -> Float[Tensor, "B C k Y X"]:
    """The cells of each window, in rows; those beyond the grid are zeros. For layers whose scores are no products."""
    batch, channels, rows, columns = x.shape
    cells = F.unfold(x, window, padding=window // 2)
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
