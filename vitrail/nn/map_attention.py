"""Attention between the cells of a feature map: what the layers of `nn/mix` share.

A layer's weights may be products of queries and keys, computed for a block of cells at a time (`attend_windows`), or
anything else, computed for the cells of each window (`aggregate`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from vitrail.errors import SpecError
from vitrail.nn.dot_product import attend
from vitrail.nn.window import Windows, check_window, gather_cells, neighbours

BLOCK = 4  # the fastest of 2, 4, 8 and 16 in training on a CPU, for windows of 3 and 7 on maps of 4 to 16 rows


class MapAttention(nn.Module):
    """Mixes the values of cells, with weights of its own for each head; stride 2 is average pooling afterwards.

    A layer computes `value(x)`, and `mix(x, values)`, which is linear in the values.
    """

    value: nn.Module

    def __init__(self, *, heads: int, stride: int) -> None:
        super().__init__()
        self.heads, self.stride = heads, stride
        self.fused: bool | None = None

    def mix(self, x: Float[Tensor, "B C Y X"], values: Float[Tensor, "B H E Y X"]) -> Float[Tensor, "B H E Y X"]:
        """The weighted sum of the values that each cell sees."""
        raise NotImplementedError

    def forward(self, x: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B D Y2 X2"]:
        return pool(self.mix(x, split_map(self.value(x), self.heads)).flatten(1, 2), self.stride)

    def weights(self, x: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B H n N"]:
        """The weight of each cell (column) in each cell of the output (row), for maps of a few hundred cells."""
        batch, _, rows, columns = x.shape
        cells = rows * columns
        identity = torch.eye(cells, dtype=x.dtype, device=x.device).view(cells, rows, columns)
        mixed = self.mix(x, identity.expand(batch, self.heads, -1, -1, -1))
        return rearrange(pool(mixed.flatten(1, 2), self.stride), "B (H N) Y X -> B H (Y X) N", H=self.heads)


def split_map(x: Float[Tensor, "B C Y X"], heads: int) -> Float[Tensor, "B H E Y X"]:
    """Divide the channels among the heads."""
    batch, channels, rows, columns = x.shape
    return x.reshape(batch, heads, channels // heads, rows, columns)


def pool(x: Float[Tensor, "B C Y X"], stride: int) -> Float[Tensor, "B C Y2 X2"]:
    """The mean over squares of `stride` x `stride` cells; those at the border may be smaller."""
    return F.avg_pool2d(x, stride, ceil_mode=True) if stride > 1 else x


def to_cells(x: Float[Tensor, "B H E Y X"]) -> Float[Tensor, "B H N E"]:
    """Arrange a map as a row of cells."""
    return x.flatten(3).transpose(2, 3)


def to_map(cells: Float[Tensor, "B H N E"], grid: tuple[int, int]) -> Float[Tensor, "B H E Y X"]:
    """Undo `to_cells`."""
    return rearrange(cells, "B H (Y X) E -> B H E Y X", Y=grid[0], X=grid[1])


def windows_on(grid: tuple[int, int], window: int) -> Windows:
    """The windows of a map."""
    return Windows(grid, window, BLOCK)


def attend_windows(
    windows: Windows,
    q: Float[Tensor, "B*G H b E"],
    k: Float[Tensor, "B H N E"],
    v: Float[Tensor, "B H E2 Y X"],
    *,
    bias: Float[Tensor, "#B*G #H b h"],
    fused: bool | None,
) -> Float[Tensor, "B H E2 Y X"]:
    """softmax(q k' / sqrt(E) + bias) v over each window, for queries in blocks."""
    batch, device = k.shape[0], q.device
    around = windows.halo_cells(device)
    keys, values = (rearrange(gather_cells(x, around), "B H G h E -> (B G) H h E") for x in (k, to_cells(v)))
    heads = attend(q, keys, values, pair_mask=windows.visible(device).repeat(batch, 1, 1), bias=bias, fused=fused)
    by_cell = rearrange(heads, "(B G) H b E -> B H (G b) E", B=batch, G=len(around))  # a batch may be empty
    return to_map(by_cell.index_select(2, windows.place_in_blocks(device)), windows.grid)


def to_blocks(windows: Windows, x: Float[Tensor, "B H N E"]) -> Float[Tensor, "B*G H b E"]:
    """Arrange cells by block."""
    return rearrange(gather_cells(x, windows.block_cells(x.device)), "B H G b E -> (B G) H b E")


def count_pairs(windows: Windows) -> int:
    """How many pairs of cells `attend_windows` multiplies."""
    rows, columns = windows.num_blocks
    return rows * columns * windows.block**2 * windows.halo**2


def aggregate(
    weights: Float[Tensor, "B H k Y X"], values: Float[Tensor, "B H E Y X"], window: int
) -> Float[Tensor, "B H E Y X"]:
    """The weighted sum of the values in each window."""
    around = rearrange(neighbours(values.flatten(1, 2), window), "B (H E) k Y X -> B H E k Y X", H=values.shape[1])
    return (weights[:, :, None] * around).sum(dim=3)


def on_map(x: Float[Tensor, "B C Y X"], window: int) -> Bool[Tensor, "1 1 k Y X"]:
    """Which cells of each window are on the map."""
    return neighbours(torch.ones(1, 1, x.shape[2], x.shape[3], device=x.device), window) > 0


def window_offsets(window: int, device: torch.device | str = "cpu") -> Int64[Tensor, "k 2"]:
    """The rows and columns from the middle of a window to each of its cells."""
    steps = torch.arange(window, device=device) - window // 2
    return torch.cartesian_prod(steps, steps)


def check_map_window(window: int, grid: tuple[int, int]) -> None:
    """Reject a window that is even or larger than the smallest map that it slides over."""
    check_window(window, grid, otherwise="mix=conv")


def check_share(share: int, channels: int, *, name: str = "share") -> None:
    """Reject a number of channels with the same weights that does not divide all channels."""
    if share < 1 or channels % share:
        divisors = [str(n) for n in range(1, min(channels, 16) + 1) if channels % n == 0]
        raise SpecError(
            f"{name} must divide the channels.",
            got=f"{name}={share}, {channels} channels.",
            hint=f"{name}={', '.join(divisors)}.",
        )


def check_even_heads(channels: int, heads: int, reason: str) -> None:
    """Reject heads of an odd width."""
    if channels // heads % 2:
        even = [str(n) for n in range(1, heads) if channels % (2 * n) == 0]
        raise SpecError(
            f"heads must have an even width, because {reason}.",
            got=f"heads={heads}, {channels} channels.",
            hint=f"heads={', '.join(even)}.",
        )
