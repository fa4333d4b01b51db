"""The keys and values of earlier tokens, kept so that a decoder computes each token once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor


class Cache(NamedTuple):
    """What one attention layer remembers; `mask` is False for padding.

    A model of `depth` layers keeps 2 * depth * B * M * D numbers for M tokens, so 2 * depth * B * M * D * 4 bytes in
    float32. Each step copies the cache once, which costs no more than reading it, as attention does anyway.
    """

    k: Float[Tensor, "B H M E"]
    v: Float[Tensor, "B H M E"]
    mask: Bool[Tensor, "B M"] | None = None


def extend(
    cache: Cache | None,
    k: Float[Tensor, "B H N E"],
    v: Float[Tensor, "B H N E"],
    mask: Bool[Tensor, "B N"] | None = None,
) -> Cache:
    """Append the keys and values of the next tokens; no cache means that these are the first."""
    if cache is None:
        return Cache(k, v, mask)
    if mask is not None or cache.mask is not None:
        masks = [
            torch.ones(keys.shape[0], keys.shape[2], dtype=torch.bool, device=keys.device) if part is None else part
            for part, keys in ((cache.mask, cache.k), (mask, k))
        ]
        mask = torch.cat(masks, dim=1)
    return Cache(torch.cat([cache.k, k], dim=2), torch.cat([cache.v, v], dim=2), mask)
