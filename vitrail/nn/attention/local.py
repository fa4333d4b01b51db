"""Local attention: every cell attends to the k x k window around it, cut off at the borders of the grid.

Stand-alone self-attention (Ramachandran et al., arXiv 1906.05909, section 3) as a Vision Transformer's attention, with
the weights of full attention. Prefix tokens attend to all tokens, and all tokens to them. It is computed in blocks of
cells (`nn/window.py`): time and memory grow with the number of cells, and no attention matrix is formed.

With `relative`, scores are q (k + r), where r is a learned vector for the offset between two cells: half of it for the
rows between them, half for the columns, shared by all heads (equation 3). A prefix token has no place, hence no r.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from vitrail import spec
from vitrail.nn.dot_product import attend, attention_weights
from vitrail.nn.qkv import QkvBias
from vitrail.nn.rotary import Rotary, Rotary2d
from vitrail.nn.self_attention import SelfAttention
from vitrail.nn.window import Windows, check_window, count_visible, gather_cells
from vitrail.tokens import Layout, Tokens


class Spec(spec.Spec):
    """The side of the window in cells, and whether scores depend on the offset between cells."""

    name: Literal["local"] = "local"
    window: int = 7
    relative: bool = False
    needs_grid: ClassVar[bool] = True

    def check_grid(self, grid: tuple[int, ...]) -> None:
        """Reject an even window, one larger than the grid, and a grid that is not of rows and columns."""
        check_window(self.window, grid)


class Attention(SelfAttention):
    """Multi-head self-attention of every cell to its window, in blocks."""

    def __init__(
        self,
        spec: Spec | None = None,
        *,
        width: int,
        heads: int,
        bias: QkvBias = True,
        rotary: Rotary | Rotary2d | None = None,
        dropout_rate: float = 0.0,
    ) -> None:
        super().__init__(width=width, heads=heads, bias=bias, rotary=rotary, dropout_rate=dropout_rate)
        spec = spec or Spec()
        self.window = spec.window
        half = width // heads // 2
        # Not called weights: like other tables of positions they are not decayed.
        self.rel_rows = nn.Parameter(torch.empty(spec.window, half)) if spec.relative else None
        self.rel_columns = nn.Parameter(torch.empty(spec.window, width // heads - half)) if spec.relative else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start without a preference for any offset."""
        for table in (self.rel_rows, self.rel_columns):
            if table is not None:
                nn.init.zeros_(table)

    def forward(self, tokens: Tokens) -> Float[Tensor, "B N D"]:
        tokens.require_grid("local attention")
        q, k, v = self.split(tokens)
        cells = self._attend_in_blocks(q, k, v, tokens.layout, tokens.mask)
        if not tokens.layout.prefix:
            return self.merge(cells)
        first = attend(
            *(q[:, :, : tokens.layout.prefix], k, v),
            mask=tokens.mask,
            dropout_rate=self.current_dropout_rate,
            fused=self.fused,
        )
        return self.merge(torch.cat([first, cells], dim=2))

    def _attend_in_blocks(
        self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, mask: Bool[Tensor, "B N"] | None
    ) -> Float[Tensor, "B H n E"]:
        """The outputs of all cells. Blocks stand in the batch, samples among the heads: all share one pair mask."""
        rows, columns = layout.grid
        windows, prefix, device = Windows((rows, columns), self.window), layout.prefix, q.device
        own = windows.block_cells(device) + prefix
        around = windows.halo_cells(device) + prefix
        seen = torch.cat([torch.arange(prefix, device=device).expand(around.shape[0], -1), around], dim=1)
        visible = F.pad(windows.visible(device), (prefix, 0), value=True)
        queries, keys, values = (_gather(x, cells) for x, cells in ((q, own), (k, seen), (v, seen)))
        bias = None if mask is None else _hide(_gather(mask[:, None, :, None].expand(-1, q.shape[1], -1, -1), seen), q)
        if self.rel_rows is not None:
            steps = windows.steps(device)
            relative = self._relative(queries, steps, steps, prefix)
            bias = relative if bias is None else relative + bias
        heads = attend(
            *(queries, keys, values),
            pair_mask=visible,
            bias=bias,
            dropout_rate=self.current_dropout_rate,
            fused=self.fused,
        )
        by_cell = rearrange(heads, "G (B H) b E -> (G b) B H E", H=self.heads)
        return by_cell.index_select(0, windows.place_in_blocks(device)).permute(1, 2, 0, 3)

    def _relative(
        self,
        q: Float[Tensor, "B H N E"],
        row_steps: Int64[Tensor, "Y Y2"],
        column_steps: Int64[Tensor, "X X2"],
        prefix: int,
    ) -> Float[Tensor, "B H N M"]:
        """q r / sqrt(E) for Y x X queries and the keys of `prefix` tokens and Y2 x X2 cells.

        Steps say where a key's row or column lies in a query's window; pairs further apart get any number.
        """
        assert self.rel_rows is not None
        assert self.rel_columns is not None
        half, scale = self.rel_rows.shape[1], q.shape[-1] ** -0.5
        by_row, by_column = (
            rearrange(F.linear(part * scale, table), "B H (Y X) k -> B H Y X k", Y=row_steps.shape[0])
            for part, table in ((q[..., :half], self.rel_rows), (q[..., half:], self.rel_columns))
        )
        size = by_row.shape[:-1]
        of_rows = by_row.gather(-1, row_steps.clamp(0, self.window - 1)[:, None].expand(*size, -1))
        of_columns = by_column.gather(-1, column_steps.clamp(0, self.window - 1).expand(*size, -1))
        scores = of_rows[..., :, None] + of_columns[..., None, :]
        return F.pad(rearrange(scores, "B H Y X Y2 X2 -> B H (Y X) (Y2 X2)"), (prefix, 0))

    def weights(self, tokens: Tokens, queries: Int64[Tensor, " n"] | None = None) -> Float[Tensor, "B H N N"]:
        """Compute each head's attention from every token (row) to every token (column); zero outside the window.

        With `queries`, compute the rows of these tokens only.
        """
        tokens.require_grid("local attention")
        q, k, _ = self.split(tokens)
        prefix = tokens.layout.prefix
        row_steps, column_steps = (
            (torch.arange(side) - torch.arange(side)[:, None] + self.window // 2).to(q.device)
            for side in tokens.layout.grid
        )
        near_rows, near_columns = ((steps >= 0) & (steps < self.window) for steps in (row_steps, column_steps))
        near = rearrange(near_rows[:, None, :, None] & near_columns[None, :, None, :], "Y X Z W -> (Y X) (Z W)")
        pairs = F.pad(near, (prefix, 0, prefix, 0), value=True)
        bias = None
        if self.rel_rows is not None:
            relative = self._relative(q[:, :, prefix:], row_steps, column_steps, prefix)
            bias = F.pad(relative, (0, 0, prefix, 0))
        return attention_weights(q, k, mask=tokens.mask, pair_mask=pairs[None], bias=bias, queries=queries)

    def mixing_flops(self, layout: Layout) -> int:
        """Twice the multiply-adds of q k' and of the weighted sum, for one sample: what the windows need.

        Counts the pairs of a cell and a visible token. Blocks compute more pairs, and hide those outside the window.
        """
        pairs = layout.prefix * (layout.num_tokens + layout.num_cells) + count_visible(layout.grid, self.window)
        flops = 4 * pairs * self.proj.in_features
        if self.rel_rows is not None:  # q r for every offset, in place of every pair
            flops += 2 * layout.num_cells * self.window * self.proj.in_features
        return flops


def _gather(x: Float[Tensor, "B H N E"], tokens: Int64[Tensor, "G s"]) -> Float[Tensor, "G B*H s E"]:
    """The tokens of each block, of all samples and heads."""
    return rearrange(gather_cells(x, tokens), "B H G s E -> G (B H) s E")


def _hide(mask: Bool[Tensor, "G B*H s 1"], like: Tensor) -> Float[Tensor, "G B*H 1 s"]:
    """A bias that hides padding."""
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(~mask, -torch.inf).transpose(2, 3)
