"""Which layers suffer most from eight bits? Each is rounded alone, and the model's answers are compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

LEVELS = 255
PICTURES = 8


@torch.inference_mode()
def worst_layers(model: Any, images: Float[Tensor, "B C Y X"]) -> list[str]:
    """The names of the linear and convolutional layers, those first that change the answers most."""
    images = images[:PICTURES]
    before = model(images).log_softmax(dim=1)
    lost = {}
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            with _rounded(layer):
                lost[name] = F.kl_div(model(images).log_softmax(dim=1), before, log_target=True, reduction="sum").item()
    return sorted(lost, key=lambda name: -lost[name])


@contextmanager
def _rounded(layer: nn.Linear | nn.Conv2d) -> Iterator[None]:
    """A layer whose weights are in 255 levels for each output, and whose inputs in 255 for all."""
    kept = layer.weight.data
    scale = kept.flatten(1).abs().amax(dim=1).clamp(min=1e-12).view(-1, *[1] * (kept.ndim - 1)) / (LEVELS // 2)
    layer.weight.data = (kept / scale).round() * scale
    hook = layer.register_forward_pre_hook(lambda _, given: (_levels(given[0]), *given[1:]))
    try:
        yield
    finally:
        hook.remove()
        layer.weight.data = kept


def _levels(x: Tensor) -> Tensor:
    low, high = x.amin(), x.amax()
    step = ((high - low) / LEVELS).clamp(min=1e-12)
    return ((x - low) / step).round() * step + low
