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
from vitrail.errors import SpecError
from vitrail.nn.dot_product import attend, attention_weights
from vitrail.nn.qkv import QkvBias
from vitrail.nn.relative import RelativeTable, axis_offsets, relative_scores
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
    any_size: ClassVar[bool] = False
    """Whether one exported graph takes every image size: a graph has a fixed number of blocks."""

    def check_grid(self, grid: tuple[int, ...]) -> None:
        """Reject an even window, one larger than the grid, and a grid that is not of rows and columns."""
        check_window(self.window, grid)

    @property
    def sees(self) -> str:
        """What a cell attends to, in words."""
        return f"the {self.window} x {self.window} patches around it"


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
        if spec.relative and width // heads < 2:
            raise SpecError(
                "relative positions need heads of at least two numbers, one for rows and one for columns.",
                got=f"width={width}, heads={heads}.",
                hint=f"heads={width // 2}.",
            )
        self.rel_rows: RelativeTable | None = None
        self.rel_columns: RelativeTable | None = None
        if spec.relative:
            reach, half = spec.window // 2, width // heads // 2
            self.rel_rows = RelativeTable(groups=1, reach=reach, width=half)
            self.rel_columns = RelativeTable(groups=1, reach=reach, width=width // heads - half)
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start without a preference for any offset."""
        for table in (self.rel_rows, self.rel_columns):
            if table is not None:
                nn.init.zeros_(table.table)

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
            offsets = axis_offsets(windows.block, windows.halo, before=self.window // 2, device=device)
            relative = self._relative(queries, offsets, offsets, prefix)
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
        rows: Int64[Tensor, "Y Y2"],
        columns: Int64[Tensor, "X X2"],
        prefix: int,
    ) -> Float[Tensor, "B H N M"]:
        """q r / sqrt(E) for Y x X queries and the keys of `prefix` tokens and Y2 x X2 cells, by their offsets.

        Pairs of cells that do not see each other get any number.
        """
        assert self.rel_rows is not None
        assert self.rel_columns is not None
        on_grid = q.reshape(*q.shape[:2], rows.shape[0], columns.shape[0], q.shape[3]) * q.shape[3] ** -0.5
        half = self.rel_rows.table.shape[-1]
        tables = self.rel_rows(rows), self.rel_columns(columns)
        scores = relative_scores(on_grid[..., :half], on_grid[..., half:], *tables)
        return F.pad(scores, (prefix, 0))

    def weights(self, tokens: Tokens, queries: Int64[Tensor, " n"] | None = None) -> Float[Tensor, "B H N N"]:
        """Compute each head's attention from every token (row) to every token (column); zero outside the window.

        With `queries`, compute the rows of these tokens only.
        """
        tokens.require_grid("local attention")
        q, k, _ = self.split(tokens)
        prefix = tokens.layout.prefix
        rows, columns = (axis_offsets(side, side, device=q.device) for side in tokens.layout.grid)
        near_rows, near_columns = (offsets.abs() <= self.window // 2 for offsets in (rows, columns))
        near = rearrange(near_rows[:, None, :, None] & near_columns[None, :, None, :], "Y X Z W -> (Y X) (Z W)")
        pairs = F.pad(near, (prefix, 0, prefix, 0), value=True)
        bias = None
        if self.rel_rows is not None:
            relative = self._relative(q[:, :, prefix:], rows, columns, prefix)
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
