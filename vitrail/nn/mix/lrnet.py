"""The local relation layer (Hu et al., arXiv 1904.11491, equations 3 to 5).

`share` channels have the same weights: a softmax over the window of -(q - k)^2, where query and key are one number
each, plus a geometry prior, which a small network computes from the offset. The values are the input itself; the
residual unit's last convolution is the paper's transform of the output. Stride 2 is average pooling.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn

from vitrail import spec
from vitrail.nn.conv import conv_flops
from vitrail.nn.map_attention import (
    MapAttention,
    attend_windows,
    check_map_window,
    check_share,
    count_pairs,
    split_map,
    to_blocks,
    to_cells,
    window_offsets,
    windows_on,
)


class Spec(spec.Spec):
    """The side of the window, how many channels share their weights, and the hidden width of the geometry network."""

    name: Literal["lrnet"] = "lrnet"
    window: int = 7
    share: int = 8
    hidden: PositiveInt = 16

    def check(self, channels: int, grid: tuple[int, int]) -> None:
        """Reject settings that do not fit maps of this many channels and this size."""
        check_map_window(self.window, grid)
        check_share(self.share, channels)


class Layer(MapAttention):
    """Composes each cell from those of its window that fit it, by appearance and by place."""

    def __init__(self, spec: Spec, channels: int, *, stride: int) -> None:
        super().__init__(heads=channels // spec.share, stride=stride)
        self.window, self.share = spec.window, spec.share
        self.query = nn.Conv2d(channels, self.heads, 1)
        self.key = nn.Conv2d(channels, self.heads, 1)
        self.value = nn.Identity()
        self.geometry = nn.Sequential(nn.Linear(2, spec.hidden), nn.ReLU(), nn.Linear(spec.hidden, self.heads))

    def mix(self, x: Float[Tensor, "B C Y X"], values: Float[Tensor, "B H E Y X"]) -> Float[Tensor, "B H E Y X"]:
        """Compose each window."""
        windows = windows_on((x.shape[2], x.shape[3]), self.window)
        q, k = (to_cells(split_map(project(x), self.heads)) for project in (self.query, self.key))
        centre = k.mean(dim=2, keepdim=True)  # the same for both changes nothing, but squares are smaller to round
        q, k = q - centre, k - centre
        # -(q - k)^2 is (2q, -1)'(k, k^2) up to -q^2, which a softmax over k does not notice.
        q = torch.cat([2 * q, -torch.ones_like(q)], dim=-1) * 2**0.5  # undoes the scaling of scores
        k = torch.cat([k, k.square()], dim=-1)
        prior = self.geometry(window_offsets(self.window, x.device).to(self.query.weight)).mT
        bias = prior[None, :, windows.offsets(x.device).clamp_min(0)]
        return attend_windows(windows, to_blocks(windows, q), k, values, bias=bias, fused=self.fused)

    def flops(self, size: tuple[int, int]) -> int:
        """Count twice the multiply-adds for a map of this size."""
        pairs = count_pairs(windows_on(size, self.window))
        prior = sum(part.weight.numel() for part in self.geometry if isinstance(part, nn.Linear))
        mixing = 2 * pairs * self.heads * (2 + self.share)
        return 2 * conv_flops(self.query, size) + mixing + 2 * self.window**2 * prior
