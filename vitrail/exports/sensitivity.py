"""Which layers lose most in 8 bits? Each is rounded alone, and the outputs are compared with the model's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

LEVELS = 255
NUM_IMAGES = 8


@torch.inference_mode()
def rank_layers(model: nn.Module, images: Float[Tensor, "B C Y X"]) -> list[str]:
    """The names of the linear and convolutional layers, the most sensitive to 8-bit rounding first."""
    images = images[:NUM_IMAGES]
    reference = model(images).log_softmax(dim=1)
    divergence = {}
    for name, layer in quantizable_layers(model).items():
        with _rounded(layer):
            outputs = model(images).log_softmax(dim=1)
        divergence[name] = F.kl_div(outputs, reference, log_target=True, reduction="sum").item()
    return sorted(divergence, key=lambda name: -divergence[name])


def quantizable_layers(model: nn.Module) -> dict[str, nn.Linear | nn.Conv2d]:
    """The linear and convolutional layers of a model by name."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)}


@contextmanager
def _rounded(layer: nn.Linear | nn.Conv2d) -> Iterator[None]:
    """A layer with 255 levels for the weights of each output, and 255 for its input as a whole."""
    weight = layer.weight.data
    scale = weight.flatten(1).abs().amax(dim=1).clamp(min=1e-12).view(-1, *[1] * (weight.ndim - 1)) / (LEVELS // 2)
    layer.weight.data = (weight / scale).round() * scale
    hook = layer.register_forward_pre_hook(lambda _, inputs: (_round(inputs[0]), *inputs[1:]))
    try:
        yield
    finally:
        hook.remove()
        layer.weight.data = weight


def _round(x: Tensor) -> Tensor:
    low, high = x.amin(), x.amax()
    step = ((high - low) / LEVELS).clamp(min=1e-12)
    return ((x - low) / step).round() * step + low
