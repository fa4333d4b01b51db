"""Fourier features of positions in one to three dimensions (Jaegle et al., arXiv 2103.03206, section 3.2).

A position along an axis is a number x from -1 to 1. Its features are x itself, and sin(pi f x) and cos(pi f x) at
frequencies f from 1 to half of a resolution: the highest frequency that samples of that resolution can represent.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def fourier_width(num_dims: int, bands: int) -> int:
    """The number of features of a position."""
    return num_dims * (2 * bands + 1)


def fourier_positions(
    grid: tuple[int, ...], *, bands: int, resolution: tuple[float, ...], device: torch.device | None = None
) -> Float[Tensor, "*grid D"]:
    """The features of each cell of a grid: all sines, all cosines and the coordinate, axis by axis.

    Features are functions of the coordinates, so those of a finer grid lie between those of a coarser one.
    """
    parts = []
    for axis, (num, samples) in enumerate(zip(grid, resolution, strict=True)):
        features = axis_features(num, bands=bands, samples=samples, device=device)
        before, after = [1] * axis, [1] * (len(grid) - axis - 1)
        parts.append(features.view(*before, num, *after, -1).expand(*grid, -1))
    return torch.cat(parts, dim=-1)


def axis_features(
    num: int, *, bands: int, samples: float, device: torch.device | None = None
) -> Float[Tensor, "num D"]:
    """The features of `num` evenly spaced positions from -1 to 1; a single one is in the middle."""
    last = num - 1
    places = 2 * torch.arange(num, dtype=torch.float32, device=device) - last
    x = (places / torch.sym_max(last, 1))[:, None]  # type: ignore[no-untyped-call]
    step = (samples / 2 - 1) / max(bands - 1, 1)
    frequencies = 1 + step * torch.arange(bands, dtype=torch.float32, device=device)
    angles = torch.pi * x * frequencies
    return torch.cat([angles.sin(), angles.cos(), x], dim=1)
