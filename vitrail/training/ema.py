"""A moving average of the weights, which is often better than the weights (Polyak and Juditsky 1992)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vitrail.training import shard


class Ema:
    """The average of a model's parameters; young averages forget faster, so that the first steps do not linger."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.parameters = list(model.parameters())
        self.names = [name for name, _ in model.named_parameters()]
        self.averages = [parameter.detach().clone() for parameter in self.parameters]

    def update(self, num_steps: int) -> None:
        """Take in the weights after so many steps."""
        decay = min(self.decay, (1 + num_steps) / (10 + num_steps))
        torch._foreach_lerp_(self.averages, [parameter.detach() for parameter in self.parameters], 1.0 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model with the average in the place of its weights."""
        kept = [parameter.detach().clone() for parameter in self.parameters]
        _copy(self.averages, self.parameters)
        try:
            yield
        finally:
            _copy(kept, self.parameters)

    def tensors(self) -> dict[str, Tensor]:
        """The averages under their parameters' names."""
        return dict(zip(self.names, self.averages, strict=True))

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Go on from averages that were stored."""
        shard.fill(self.tensors(), tensors)


@torch.no_grad()
def _copy(given: Sequence[Tensor], taken: Sequence[Tensor]) -> None:
    for source, target in zip(given, taken, strict=True):
        target.copy_(source)
