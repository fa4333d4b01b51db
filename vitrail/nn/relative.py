"""Relative positions along an axis: an embedding for each offset between two cells (Shaw et al., arXiv 1803.02155).

On a grid, an offset has one embedding for its rows and one for its columns (Bello et al., arXiv 1904.09925).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn


class RelativeTable(nn.Module):
    """The embeddings of the offsets from -reach to reach, for each of `groups`; farther cells share the last one."""

    def __init__(self, *, groups: int, reach: int, width: int) -> None:
        super().__init__()
        self.reach = reach
        self.table = nn.Parameter(torch.empty(groups, 2 * reach + 1, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise so that a product with a vector of unit variance has unit variance."""
        nn.init.normal_(self.table, std=self.table.shape[-1] ** -0.5)

    def forward(self, offsets: Int64[Tensor, "N M"]) -> Float[Tensor, "groups N M E"]:
        return self.table[:, offsets.clamp(-self.reach, self.reach) + self.reach]


def axis_offsets(
    num: int, num_seen: int, *, before: int = 0, device: torch.device | str = "cpu"
) -> Int64[Tensor, "N M"]:
    """The offset from each of `num` cells in a row to each that is seen; `before` of those precede the first cell."""
    cells, seen = torch.arange(num, device=device), torch.arange(num_seen, device=device)
    return seen[None] - before - cells[:, None]


def relative_scores(
    q_rows: Float[Tensor, "B H Y X E"],
    q_columns: Float[Tensor, "B H Y X E"],
    rows: Float[Tensor, "#H Y M E"],
    columns: Float[Tensor, "#H X N E"],
) -> Float[Tensor, "B H Y*X M*N"]:
    """The products of each cell's query with the embeddings of the rows and columns that it sees, added up."""
    by_rows = torch.einsum("bhyxe,hyme->bhyxm", q_rows, rows)
    by_columns = torch.einsum("bhyxe,hxne->bhyxn", q_columns, columns)
    return (by_rows[..., :, None] + by_columns[..., None, :]).flatten(4, 5).flatten(2, 3)


def relative_flops(num_cells: int, seen: tuple[int, int], width: int) -> int:
    """Twice the multiply-adds of `relative_scores`, where all heads together are `width` wide."""
    return 2 * num_cells * sum(seen) * width
