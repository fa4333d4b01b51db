"""Sharpness-aware minimisation (Foret et al., arXiv 2010.01412): descend by the gradient of a worse point nearby.

The gradient is computed twice: at the weights, and at the point a distance rho away in its direction, where the loss is
about the highest. The second one updates the weights, which then settle where the loss is flat.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager

from torch import nn

from vitrail.nn.displace import displaced
from vitrail.training.shard import full_tensor

EPS = 1e-12


def ascended(parameters: Iterable[nn.Parameter], rho: float) -> AbstractContextManager[None]:
    """Move the weights by rho in the direction of their gradients, within the context."""
    moved = [parameter for parameter in parameters if parameter.grad is not None]
    gradients = [parameter.grad for parameter in moved if parameter.grad is not None]
    norm = full_tensor(nn.utils.get_total_norm(gradients)).item()  # over all shards, if there are any
    return displaced(moved, gradients, rho / (norm + EPS))
