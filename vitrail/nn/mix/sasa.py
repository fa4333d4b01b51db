"""Stand-alone self-attention (Ramachandran et al., arXiv 1906.05909, equation 3).

Each cell attends to the k x k cells around it; the score of a pair is q'k + q'r, and r, the embedding of the offset,
is one half rows, one half columns. As in the paper, scores are not scaled, and stride 2 is 2 x 2 average pooling.
"""

from __future__ import annotations

from typing import Literal

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitrail import spec
from vitrail.nn.conv import conv_flops
from vitrail.nn.dot_product import check_heads
from vitrail.nn.map_attention import (
    MapAttention,
    attend_windows,
    check_even_heads,
    check_map_window,
    count_pairs,
    split_map,
    to_blocks,
    to_cells,
    windows_on,
)
from vitrail.nn.relative import RelativeTable, axis_offsets, relative_flops, relative_scores


class Spec(spec.Spec):
    """The side of the window, and the number of heads."""

    name: Literal["sasa"] = "sasa"
    window: int = 7
    heads: int = 8

    def check(self, channels: int, grid: tuple[int, int]) -> None:
        """Reject settings that do not fit maps of this many channels and this size."""
        check_map_window(self.window, grid)
        check_heads(channels, self.heads)
        check_even_heads(channels, self.heads, "one half is for rows, one for columns")


class Layer(MapAttention):
    """Attention in windows with relative positions."""

    def __init__(self, spec: Spec, channels: int, *, stride: int) -> None:
        super().__init__(heads=spec.heads, stride=stride)
        self.window, self.width = spec.window, channels // spec.heads
        self.query = nn.Conv2d(channels, channels, 1, bias=False)
        self.key = nn.Conv2d(channels, channels, 1, bias=False)
        self.value = nn.Conv2d(channels, channels, 1, bias=False)
        reach, half = spec.window // 2, self.width // 2
        self.rows = RelativeTable(groups=spec.heads, reach=reach, width=half)
        self.columns = RelativeTable(groups=spec.heads, reach=reach, width=half)

    def mix(self, x: Float[Tensor, "B C Y X"], values: Float[Tensor, "B H E Y X"]) -> Float[Tensor, "B H E Y X"]:
        """Attend within each window."""
        windows = windows_on((x.shape[2], x.shape[3]), self.window)
        q, k = (to_cells(split_map(project(x), self.heads)) for project in (self.query, self.key))
        q = to_blocks(windows, q)
        offsets = axis_offsets(windows.block, windows.halo, before=self.window // 2, device=x.device)
        on_grid, half = rearrange(q, "G H (Y X) E -> G H Y X E", Y=windows.block), self.width // 2
        bias = relative_scores(on_grid[..., :half], on_grid[..., half:], self.rows(offsets), self.columns(offsets))
        q = q * self.width**0.5  # undoes the scaling of scores
        return attend_windows(windows, q, k, values, bias=bias, fused=self.fused)

    def flops(self, size: tuple[int, int]) -> int:
        """Count twice the multiply-adds for a map of this size."""
        windows, channels = windows_on(size, self.window), self.heads * self.width
        rows, columns = windows.num_blocks
        cells = rows * columns * windows.block**2
        position = relative_flops(cells, (windows.halo, windows.halo), channels // 2)
        return 3 * conv_flops(self.query, size) + 4 * count_pairs(windows) * channels + position
