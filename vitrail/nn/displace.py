"""Weights a little away from where they are: for sharpness-aware training, and to look at the loss around a minimum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def displaced(parameters: Sequence[Tensor], directions: Sequence[Tensor], distance: float) -> Iterator[None]:
    """Move parameters by `distance` times their directions, within the context; then exactly back."""
    backup = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        for parameter, direction in zip(parameters, directions, strict=True):
            parameter.add_(direction, alpha=distance)
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, weight in zip(parameters, backup, strict=True):
                parameter.copy_(weight)
