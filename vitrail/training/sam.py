"""Sharpness-aware minimisation (Foret et al., arXiv 2010.01412): descend by the gradient of a worse point nearby.

The gradient is computed twice: at the weights, and at the point a distance rho away in its direction, where the loss is
about the highest. The second one updates the weights, which then settle where the loss is flat.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

EPS = 1e-12


@contextmanager
def ascended(parameters: Iterable[nn.Parameter], rho: float) -> Iterator[None]:
    """Move the weights by rho in the direction of their gradients, within the context; then exactly back."""
    moved = [parameter for parameter in parameters if parameter.grad is not None]
    gradients = [parameter.grad for parameter in moved if parameter.grad is not None]
    backup = [parameter.detach().clone() for parameter in moved]
    norm = nn.utils.get_total_norm(gradients)  # over all shards, if there are any
    norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    with torch.no_grad():
        for parameter, gradient in zip(moved, gradients, strict=True):
            parameter.add_(gradient, alpha=rho / (norm.item() + EPS))
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, weight in zip(moved, backup, strict=True):
                parameter.copy_(weight)
