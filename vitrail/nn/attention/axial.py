"""Axial attention (Ho et al., arXiv 1912.12180): every cell attends along its row, then along its column.

Both steps use the same queries and keys, so the weights are those of full attention. The output is
A_columns (A_rows v), where A_rows is full attention under the mask "same row or prefix token" and A_columns likewise.
Two steps reach every cell at a cost of N^1.5; on a grid of three dimensions a third step follows, along the frames.
Prefix tokens attend to all tokens in each step, and all tokens to them.

Relative positions (arXiv 2003.07853) are left out: their tables have one row per offset, so that weights would belong
to one image size, and their term in the values would not be `weights` times values.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from vitrail import spec
from vitrail.errors import SpecError
from vitrail.nn.dot_product import attend, attention_weights
from vitrail.nn.qkv import QkvBias
from vitrail.nn.rotary import Rotary, Rotary2d
from vitrail.nn.self_attention import SelfAttention
from vitrail.tokens import Layout, Tokens, format_size


class Spec(spec.Spec):
    """Axial attention has no settings of its own."""

    name: Literal["axial"] = "axial"
    needs_grid: ClassVar[bool] = True
    any_size: ClassVar[bool] = True

    def check_grid(self, grid: tuple[int, ...]) -> None:
        """Reject a grid that is a single row: there, axial attention is full attention."""
        if len(grid) < 2:
            raise SpecError(
                "axial attention needs a grid of rows and columns.",
                got=f"a grid of {format_size(grid)}.",
                hint="attention=full.",
            )

    @property
    def sees(self) -> str:
        """What a cell attends to, in words."""
        return "the patches of its row, then of its column"


class Attention(SelfAttention):
    """Multi-head self-attention along one dimension of the grid after the other, the last one first."""

    def __init__(
        self,
        spec: Spec | None = None,  # noqa: ARG002 - no settings; other attentions have some
        *,
        width: int,
        heads: int,
        bias: QkvBias = True,
        rotary: Rotary | Rotary2d | None = None,
        dropout_rate: float = 0.0,
    ) -> None:
        super().__init__(width=width, heads=heads, bias=bias, rotary=rotary, dropout_rate=dropout_rate)

    def forward(self, tokens: Tokens) -> Float[Tensor, "B N D"]:
        tokens.require_grid("axial attention")
        q, k, v = self.split(tokens)
        for axis in reversed(range(len(tokens.layout.grid))):
            v = self._attend_along(axis, q, k, v, tokens.layout, tokens.mask)
        return self.merge(v)

    def _attend_along(
        self, axis: int, q: Tensor, k: Tensor, v: Tensor, layout: Layout, mask: Bool[Tensor, "B N"] | None
    ) -> Float[Tensor, "B H N E"]:
        """One step: A_axis v. Lines of cells along the axis, each with all prefix tokens, stand in the batch."""
        prefix, rate = layout.prefix, self.current_dropout_rate
        queries = _to_lines(q[:, :, prefix:], layout.grid, axis)
        keys, values = (_with_prefix(x, layout, axis) for x in (k, v))
        seen = None if mask is None else _with_prefix(mask[:, None, :, None], layout, axis)[:, 0, :, 0]
        lines = attend(queries, keys, values, mask=seen, dropout_rate=rate, fused=self.fused)
        cells = _from_lines(lines, q.shape[0], layout.grid, axis)
        if not prefix:
            return cells
        first = attend(q[:, :, :prefix], k, v, mask=mask, dropout_rate=rate, fused=self.fused)
        return torch.cat([first, cells], dim=2)

    def weights(self, tokens: Tokens, queries: Int64[Tensor, " n"] | None = None) -> Float[Tensor, "B H N N"]:
        """Compute A_columns A_rows: how much of every token (column) reaches every token (row); rows sum to one.

        With `queries`, compute the rows of these tokens only.
        """
        tokens.require_grid("axial attention")
        q, k, _ = self.split(tokens)
        product: Tensor | None = None
        for axis in range(len(tokens.layout.grid)):
            pairs = same_line(tokens.layout, axis).to(q.device)
            step = attention_weights(
                q, k, mask=tokens.mask, pair_mask=pairs[None], queries=queries if product is None else None
            )
            product = step if product is None else product @ step
        assert product is not None
        return product

    def mixing_flops(self, layout: Layout) -> int:
        """Twice the multiply-adds of q k' and of the weighted sum in all steps, for one sample."""
        pairs = sum(
            layout.num_cells * (side + layout.prefix) + layout.prefix * layout.num_tokens for side in layout.grid
        )
        return 4 * pairs * self.proj.in_features


def same_line(layout: Layout, axis: int) -> Bool[Tensor, "N N"]:
    """Whether two tokens are cells on one line along this axis, or one of them is a prefix token."""
    cells = torch.arange(layout.num_cells).view(layout.grid)
    line = cells.select(axis, 0).unsqueeze(axis).expand(layout.grid).flatten()  # the number of its first cell
    pairs = torch.ones(layout.num_tokens, layout.num_tokens, dtype=torch.bool)
    pairs[layout.prefix :, layout.prefix :] = line[:, None] == line[None]
    return pairs


def _to_lines(x: Float[Tensor, "B H n E"], grid: tuple[int, ...], axis: int) -> Float[Tensor, "B*L H l E"]:
    """Arrange cells by line along an axis of the grid."""
    lines = x.reshape(*x.shape[:2], *grid, x.shape[-1]).movedim(
        (1, 2 + axis), (-3, -2)
    )  # B, the other axes, H, the axis, E
    return lines.flatten(0, -4)


def _from_lines(
    x: Float[Tensor, "B*L H l E"], batch: int, grid: tuple[int, ...], axis: int
) -> Float[Tensor, "B H n E"]:
    """Undo `_to_lines` for a batch of this size, which may be empty."""
    others = (*grid[:axis], *grid[axis + 1 :])
    cells = x.reshape(batch, *others, *x.shape[1:]).movedim((-3, -2), (1, 2 + axis))
    return cells.flatten(2, -2)


def _with_prefix(x: Float[Tensor, "B H N E"], layout: Layout, axis: int) -> Float[Tensor, "B*L H p+l E"]:
    """The prefix tokens, then the cells, for each line."""
    lines = _to_lines(x[:, :, layout.prefix :], layout.grid, axis)
    if not layout.prefix:
        return lines
    num_lines = layout.num_cells // layout.grid[axis]
    prefix = x[:, :, None, : layout.prefix].expand(-1, -1, num_lines, -1, -1)
    return torch.cat([rearrange(prefix, "B H L p E -> (B L) H p E"), lines], dim=2)
