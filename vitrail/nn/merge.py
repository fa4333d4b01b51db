"""Token merging (Bolya et al., arXiv 2210.09461): in each block the most alike cells become one, so later ones do less.

Nothing is trained. A merged token counts as many times in attention as there are cells in it, and at the end each cell
gets back the vector of the token that it went into, so that the grid is whole again for whatever pools it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from vitrail.errors import SpecError
from vitrail.tokens import Tokens


class MergingBlocks(nn.Sequential):
    """The blocks of a Vision Transformer, `num` cells fewer after the attention of each."""

    def __init__(self, blocks: Iterable[Any], num: int) -> None:
        super().__init__(*blocks)
        if num < 1:
            raise SpecError("merging takes away cells.", got=f"{num} a block.", hint="8.")
        self.num = num

    def forward(self, tokens: Tokens) -> Tokens:
        x, prefix = tokens.x, tokens.layout.prefix
        count = torch.ones_like(x[:, :, :1])  # cells in each token
        place = torch.arange(tokens.layout.num_cells, device=x.device).expand(x.shape[0], -1)  # of each cell
        block: Any
        for block in self:
            q, k, v = block.attn.split(tokens.with_x(block.norm1(x)))
            heads = F.scaled_dot_product_attention(q, k, v, attn_mask=count.log().transpose(1, 2)[:, None])
            x = x + block.ls1(block.attn.merge(heads))
            num = min(self.num, (x.shape[1] - prefix) // 2)
            if num:
                x, count, moved = merge(x, count, k.mean(dim=1), prefix, num)
                place = moved.gather(1, place)
            x = x + block.ls2(block.mlp(block.norm2(x)))
        cells = x[:, prefix:].gather(1, place[:, :, None].expand(-1, -1, x.shape[2]))
        return tokens.with_x(torch.cat([x[:, :prefix], cells], dim=1))


def merge(
    x: Float[Tensor, "B N D"], count: Float[Tensor, "B N 1"], keys: Float[Tensor, "B N E"], prefix: int, num: int
) -> tuple[Float[Tensor, "B M D"], Float[Tensor, "B M 1"], Int64[Tensor, "B n"]]:
    """Bipartite soft matching: every second cell looks for the one most like it among the others; the `num` closest
    pairs become one token each, their mean by the cells in them. Also tells where each cell is now.
    """
    keys = F.normalize(keys[:, prefix:], dim=-1)
    ahead, behind = keys[:, ::2], keys[:, 1::2]
    closeness, partner = (ahead @ behind.transpose(1, 2)).max(dim=-1)
    order = closeness.topk(closeness.shape[1], dim=1).indices  # the closest first
    gone, stay = order[:, :num], order[:, num:].sort(dim=1).values
    target = partner.gather(1, gone)  # B num
    into = F.one_hot(target, behind.shape[1]).to(x).transpose(1, 2)  # a product instead of a scatter: engines agree
    whole = torch.cat([x[:, prefix:] * count[:, prefix:], count[:, prefix:]], dim=-1)  # B n D+1
    first, second = whole[:, ::2], whole[:, 1::2]
    second = second + into @ _rows(first, gone)
    kept = torch.cat([_rows(first, stay), second], dim=1)
    cells, counts = kept[..., :-1] / kept[..., -1:], kept[..., -1:]
    return (
        torch.cat([x[:, :prefix], cells], dim=1),
        torch.cat([count[:, :prefix], counts], dim=1),
        _moved(gone, stay, target, second.shape[1]),
    )


def _rows(x: Float[Tensor, "B n D"], places: Int64[Tensor, "B m"]) -> Float[Tensor, "B m D"]:
    return x.gather(1, places[:, :, None].expand(-1, -1, x.shape[2]))


def _moved(gone: Tensor, stay: Tensor, target: Tensor, num_second: int) -> Int64[Tensor, "B n"]:
    """Where each cell is after merging: those that stay come first, then every second one."""
    num_stay, batch = stay.shape[1], stay.shape[0]
    numbers = torch.arange(num_stay + num_second, device=stay.device).expand(batch, -1)
    first = torch.cat([gone, stay], dim=1)  # which cell...
    now = torch.cat([num_stay + target, numbers[:, :num_stay]], dim=1)  # ...is where
    first = now.gather(1, first.argsort(dim=1))
    second = numbers[:, num_stay:]
    if first.shape[1] == num_second:
        return torch.stack([first, second], dim=2).flatten(1)
    pairs = torch.stack([first[:, :-1], second], dim=2).flatten(1)  # an odd number of cells
    return torch.cat([pairs, first[:, -1:]], dim=1)
