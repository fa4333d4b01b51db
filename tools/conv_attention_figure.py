"""Draw attention that equals a convolution: python tools/conv_attention_figure.py docs/figures/conv-attention.png."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from einops import rearrange
from matplotlib.figure import Figure

from vitrail.nn.conv_attention import attention_from_conv
from vitrail.tokens import Layout, Tokens

SIDE = 7
SOFT = 0.7
"""A sharpness at which the heads' centres can be seen with some of their surroundings."""


def error(alpha: float, dtype: torch.dtype) -> float:
    """The largest difference from the convolution, for random numbers of standard deviation 1."""
    torch.manual_seed(0)
    image, weight = torch.randn(1, 8, 16, 16, dtype=dtype), torch.randn(8, 8, 3, 3, dtype=dtype)
    tokens = Tokens(rearrange(image, "B C Y X -> B (Y X) C"), Layout((16, 16)))
    expected = rearrange(F.conv2d(image, weight, padding=1), "B C Y X -> B (Y X) C")
    with torch.no_grad():
        return (attention_from_conv(weight, alpha=alpha)(tokens) - expected).abs().max().item()


def draw(path: Path) -> None:
    """The attention of the nine heads from the cell in the middle, and the error against the sharpness."""
    figure = Figure(figsize=(7.6, 3.2), layout="constrained")
    heads, curve = figure.subfigures(1, 2, width_ratios=(1, 1.3))
    with torch.no_grad():
        weights = attention_from_conv(torch.zeros(1, 1, 3, 3), alpha=SOFT).weights((SIDE, SIDE))
    maps = weights[:, SIDE * SIDE // 2].view(9, SIDE + 2, SIDE + 2)[:, 1:-1, 1:-1]
    for axis, head in zip(heads.subplots(3, 3).flat, maps, strict=True):
        axis.imshow(head.numpy(), cmap="viridis")
        axis.plot(SIDE // 2, SIDE // 2, "+", color="white", markersize=5)
        axis.set(xticks=[], yticks=[])
    heads.suptitle("nine heads, from the cell marked +", fontsize=9)
    axis = curve.subplots()
    alphas = list(range(1, 41))
    for dtype in (torch.float32, torch.float64):
        axis.semilogy(alphas, [error(alpha, dtype) for alpha in alphas], label=str(dtype).removeprefix("torch."))
    axis.axhline(1e-4, color="0.6", linewidth=1, linestyle="--")
    axis.set(xlabel="sharpness alpha", ylabel="largest difference from conv2d")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
