"""Token merging (Bolya et al., arXiv 2210.09461): blocks merge their most similar patch tokens to save work.

It needs no training. A merged token counts in attention once for each cell it stands for. After the last block every
cell gets the vector of the token it was merged into, so the grid is complete again for any pooling.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from vitrail.errors import SpecError
from vitrail.nn.attention.full import Attention
from vitrail.tokens import Tokens


class MergingBlocks(nn.Sequential):
    """The blocks of a Vision Transformer; each merges `num_pairs` pairs of cells after its attention."""

    def __init__(self, blocks: Iterable[Any], num_pairs: int) -> None:
        super().__init__(*blocks)
        if num_pairs < 1:
            raise SpecError("merging needs at least one pair of tokens per block.", got=f"{num_pairs}.", hint="8.")
        for block in self:
            if not isinstance(block.attn, Attention):  # merged tokens have no place in a window, a row or a column
                kind = type(block.attn).__module__.rpartition(".")[2]
                raise SpecError(
                    "token merging needs full attention.", got=f"attention={kind}.", hint="without --merge."
                )
        self.num_pairs = num_pairs

    def forward(self, tokens: Tokens) -> Tokens:
        tokens.require_grid("token merging")
        x, prefix = tokens.x, tokens.layout.prefix
        count = torch.ones_like(x[:, :, :1])  # cells in each token
        place = torch.arange(tokens.layout.num_cells, device=x.device).expand(x.shape[0], -1)  # token of each cell
        block: Any
        for block in self:
            q, k, v = block.attn.split(tokens.with_x(block.norm1(x)))
            heads = F.scaled_dot_product_attention(q, k, v, attn_mask=count.log().transpose(1, 2)[:, None])
            x = x + block.ls1(block.attn.merge(heads))
            num_pairs = min(self.num_pairs, (x.shape[1] - prefix) // 2)
            if num_pairs:
                x, count, new_place = merge(x, count, k.mean(dim=1), prefix, num_pairs)
                place = new_place.gather(1, place)
            x = x + block.ls2(block.mlp(block.norm2(x)))
        cells = x[:, prefix:].gather(1, place[:, :, None].expand(-1, -1, x.shape[2]))
        return tokens.with_x(torch.cat([x[:, :prefix], cells], dim=1))


def merge(
    x: Float[Tensor, "B N D"], count: Float[Tensor, "B N 1"], keys: Float[Tensor, "B N E"], prefix: int, num_pairs: int
) -> tuple[Float[Tensor, "B M D"], Float[Tensor, "B M 1"], Int64[Tensor, "B n"]]:
    """Bipartite soft matching: each even cell finds the most similar odd cell, and the `num_pairs` most similar pairs
    become one token each: their mean, weighted by cell count. Also returns the new place of each cell.
    """
    keys = F.normalize(keys[:, prefix:], dim=-1)
    even_keys, odd_keys = keys[:, ::2], keys[:, 1::2]
    similarity, partner = (even_keys @ odd_keys.transpose(1, 2)).max(dim=-1)
    order = similarity.topk(similarity.shape[1], dim=1).indices  # most similar first
    merged, unmerged = order[:, :num_pairs], order[:, num_pairs:].sort(dim=1).values
    target = partner.gather(1, merged)  # B num_pairs
    assign = F.one_hot(target, odd_keys.shape[1]).to(x).transpose(1, 2)  # a product, not a scatter: engines agree on it
    sums = torch.cat([x[:, prefix:] * count[:, prefix:], count[:, prefix:]], dim=-1)  # B n D+1
    even, odd = sums[:, ::2], sums[:, 1::2]
    odd = odd + assign @ _gather_rows(even, merged)
    remaining = torch.cat([_gather_rows(even, unmerged), odd], dim=1)
    cells, counts = remaining[..., :-1] / remaining[..., -1:], remaining[..., -1:]
    return (
        torch.cat([x[:, :prefix], cells], dim=1),
        torch.cat([count[:, :prefix], counts], dim=1),
        _new_places(merged, unmerged, target, odd.shape[1]),
    )


def _gather_rows(x: Float[Tensor, "B n D"], places: Int64[Tensor, "B m"]) -> Float[Tensor, "B m D"]:
    return x.gather(1, places[:, :, None].expand(-1, -1, x.shape[2]))


def _new_places(merged: Tensor, unmerged: Tensor, target: Tensor, num_odd: int) -> Int64[Tensor, "B n"]:
    """The place of each cell after merging: unmerged even cells come first, then all odd ones."""
    num_unmerged, batch = unmerged.shape[1], unmerged.shape[0]
    places = torch.arange(num_unmerged + num_odd, device=unmerged.device).expand(batch, -1)
    cell = torch.cat([merged, unmerged], dim=1)
    place = torch.cat([num_unmerged + target, places[:, :num_unmerged]], dim=1)
    even = place.gather(1, cell.argsort(dim=1))
    odd = places[:, num_unmerged:]
    if even.shape[1] == num_odd:
        return torch.stack([even, odd], dim=2).flatten(1)
    pairs = torch.stack([even[:, :-1], odd], dim=2).flatten(1)  # an odd number of cells
    return torch.cat([pairs, even[:, -1:]], dim=1)
