"""An exponential moving average (EMA) of the weights, often better than the weights (Polyak and Juditsky 1992)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from vitrail.training import shard
from vitrail.training.learner import Learner


class Ema:
    """The EMA of all parameters; the decay starts low, so that the first steps are forgotten quickly."""

    def __init__(self, learner: Learner, decay: float) -> None:
        self.decay = decay
        self.parameters = list(learner.parameters())
        self.names = [name for name, _ in learner.named_weights()]
        self.averages = [parameter.detach().clone() for parameter in self.parameters]

    def update(self, num_steps: int) -> None:
        """Average in the weights after step `num_steps`."""
        decay = min(self.decay, (1 + num_steps) / (10 + num_steps))
        torch._foreach_lerp_(self.averages, [parameter.detach() for parameter in self.parameters], 1.0 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Replace the weights by the average within the context."""
        backup = [parameter.detach().clone() for parameter in self.parameters]
        _copy(self.averages, self.parameters)
        try:
            yield
        finally:
            _copy(backup, self.parameters)

    def tensors(self) -> dict[str, Tensor]:
        """The averages by parameter name."""
        return dict(zip(self.names, self.averages, strict=True))

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Load stored averages."""
        shard.copy_into(self.tensors(), tensors)


@torch.no_grad()
def _copy(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source)
