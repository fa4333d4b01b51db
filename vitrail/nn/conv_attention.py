"""Self-attention that equals a convolution (Cordonnier, Loukas and Jaggi, arXiv 1911.03584, theorem 1).

A head for each place in the kernel looks at one offset: its score for two cells is -alpha |delta - centre|^2, where
delta is the offset between them, in rows and columns (equation 9, the quadratic encoding). The larger alpha, the more
of a head's attention is on its centre: what is left falls as exp(-alpha). The output projection holds the kernel.

Zero padding: keys and values have a frame of zero cells around the grid, as wide as the kernel needs, as a convolution
pads its input. Without it, a head whose centre is beyond the border would attend to the nearest cell.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import ShapeError
from vitrail.nn.window import check_window
from vitrail.tokens import Tokens

ALPHA = 40.0
"""exp(-40) is below the precision of float64."""


class QuadraticAttention(nn.Module):
    """Multi-head self-attention over a grid whose scores depend on the offset alone; values are the tokens themselves.

    Of a head's value and output projections only their product matters, so `proj` holds it.
    """

    def __init__(self, *, width: int, out_width: int, window: int, bias: bool = True, alpha: float = ALPHA) -> None:
        super().__init__()
        check_window(window, (window, window))
        self.window = window
        self.alpha = nn.Parameter(torch.full((window**2,), float(alpha)))
        offsets = torch.arange(window) - window // 2
        self.centres = nn.Parameter(torch.cartesian_prod(offsets, offsets).to(self.alpha))
        self.proj = nn.Linear(window**2 * width, out_width, bias=bias)

    def weights(self, grid: tuple[int, ...]) -> Float[Tensor, "H N M"]:
        """Each head's attention from every cell to every cell of the grid with its frame; rows sum to one."""
        if len(grid) != 2:
            raise ShapeError("this attention needs rows and columns.", got=f"a grid of {len(grid)} dimensions.")
        frame, (rows, columns) = self.window // 2, (torch.arange(side).to(self.centres) for side in grid)
        own = torch.cartesian_prod(rows, columns)
        wide = (torch.arange(-frame, side + frame).to(self.centres) for side in grid)
        seen = torch.cartesian_prod(*wide)
        delta = seen[None] - own[:, None]  # N M 2
        distance = (delta - self.centres[:, None, None]).square().sum(dim=-1)
        return (-self.alpha[:, None, None] * distance).softmax(dim=-1)

    def forward(self, tokens: Tokens) -> Float[Tensor, "B N O"]:
        tokens.require_grid("attention that equals a convolution")
        rows, columns = tokens.layout.grid
        image = rearrange(tokens.cells, "B (Y X) D -> B D Y X", Y=rows, X=columns)
        framed = F.pad(image, [self.window // 2] * 4).flatten(2)  # B D M
        heads = torch.einsum("hnm,bdm->bnhd", self.weights(tokens.layout.grid), framed)
        return self.proj(heads.flatten(2))


def attention_from_conv(
    weight: Float[Tensor, "O C k k"], bias: Float[Tensor, " O"] | None = None, *, alpha: float = ALPHA
) -> QuadraticAttention:
    """Build the attention that computes `F.conv2d(image, weight, bias, padding=k // 2)`, with k^2 heads."""
    out_width, width, rows, columns = weight.shape
    if rows != columns:
        raise ShapeError("this attention needs a square kernel.", got=f"{rows} x {columns}.", hint=f"{rows} x {rows}.")
    attention = QuadraticAttention(width=width, out_width=out_width, window=rows, bias=bias is not None, alpha=alpha)
    attention = attention.to(weight)
    with torch.no_grad():
        attention.proj.weight.copy_(rearrange(weight, "O C y x -> O (y x C)"))
        if bias is not None:
            attention.proj.bias.copy_(bias)
    return attention
