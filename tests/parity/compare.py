"""Same weights, same input: outputs and all gradients must agree with the peer's."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vitrail.weights.source import get_format

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
ROTARY_TOLERANCE = 1e-5  # angles are float32 in any model, and each project rounds them in its own order


def case_id(value: object) -> str:
    """Name a case by the values of its parameters: a model, an image size, a number format, changed fields."""
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    if isinstance(value, dict):
        return " ".join(f"{name}={field}" for name, field in value.items()) or "whole"
    return str(value).removeprefix("torch.")


def far(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return ((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30)).item()


def assert_parity(
    ours: nn.Module,
    theirs: nn.Module,
    image: Tensor,
    *,
    format_name: str,
    dtype: torch.dtype,
    output: Callable[[object], Tensor] = lambda result: result,
    our_output: Callable[[nn.Module, Tensor], Tensor] = lambda model, image: model(image),
    tolerance: float | None = None,
) -> None:
    """Compare one forward and one backward pass."""
    tolerance = TOLERANCE[dtype] if tolerance is None else tolerance
    ours, theirs = ours.to(dtype).eval(), theirs.to(dtype).eval()
    image = image.to(dtype)
    our_logits, their_logits = our_output(ours, image), output(theirs(image))
    assert our_logits.shape == their_logits.shape
    assert their_logits.abs().max() > 1e-3, "the comparison says nothing if all outputs are zero"
    assert far(our_logits, their_logits) < tolerance
    direction = torch.randn(our_logits.shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    (our_logits * direction).sum().backward()
    (their_logits * direction).sum().backward()
    theirs_named = {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}
    translated = get_format(format_name).read(theirs_named)
    gradients = {name: p.grad for name, p in ours.named_parameters() if p.grad is not None}
    assert gradients.keys() == translated.keys()
    largest = max(gradient.abs().max().item() for gradient in translated.values())
    for name, gradient in gradients.items():
        difference = (gradient - translated[name]).abs().max().item()
        scale = max(translated[name].abs().max().item(), 1e-3 * largest)
        assert difference < tolerance * scale, f"{name}: {difference / scale:.2e}"
