"""How often the nearest neighbour in another modality is the right one."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

BLOCK_ROWS = 256
"""How many queries are compared with all candidates at once, so that memory grows only linearly with their number."""


class Hits(NamedTuple):
    """Which queries were answered correctly, and which were asked at all."""

    hit: Bool[Tensor, " n"]
    asked: Bool[Tensor, " n"]

    @property
    def recall(self) -> float:
        """The fraction of the queries whose nearest neighbour is a correct one (recall at 1)."""
        return self.hit.sum().item() / max(1, self.num)

    @property
    def num(self) -> int:
        """The number of queries."""
        return int(self.asked.sum().item())


def find_hits(
    queries: Float[Tensor, "n D"],
    candidates: Float[Tensor, "n D"],
    groups: Int64[Tensor, " n"],
    *,
    has_query: Bool[Tensor, " n"],
    has_candidate: Bool[Tensor, " n"],
) -> Hits:
    """Whether the nearest candidate of each query is of the same group; a sample may lack a query or a candidate."""
    asked = has_query & has_candidate  # without its own candidate, a query may have no answer
    nearest = [
        (block @ candidates.T).masked_fill(~has_candidate, -torch.inf).argmax(dim=1)
        for block in torch.split(queries, BLOCK_ROWS)
        if len(block)
    ]
    found = torch.cat(nearest) if nearest else torch.zeros(0, dtype=torch.int64)
    return Hits((groups[found] == groups) & asked, asked)


class Nearest(NamedTuple):
    """The candidates nearest to each query, the nearest first, and their cosine similarities."""

    similarities: Float[Tensor, "n k"]
    indices: Int64[Tensor, "n k"]


def nearest(queries: Float[Tensor, "n D"], candidates: Float[Tensor, "m D"], num: int) -> Nearest:
    """The `num` nearest candidates of each query, or all if there are fewer; vectors have length one."""
    return Nearest(*(queries @ candidates.T).topk(min(num, len(candidates)), dim=1))


def mean_recall(directions: list[Hits]) -> tuple[float, float]:
    """The mean recall over directions, and its standard error, over samples: their directions are not independent."""
    directions = [hits for hits in directions if hits.num]
    if not directions:
        return 0.0, math.inf
    num = len(directions[0].hit)
    shares = torch.stack([hits.hit.double() * (num / hits.num) for hits in directions]).mean(dim=0)
    return shares.mean().item(), shares.std().item() / num**0.5 if num > 1 else math.inf
