"""The 3 x 3 convolution of a residual unit, with standardised weights (Qiao et al., arXiv 1903.10520)."""

from __future__ import annotations

from typing import Literal

from vitrail import spec
from vitrail.nn.conv import StdConv


class Spec(spec.Spec):
    """A convolution has no settings of its own."""

    name: Literal["conv"] = "conv"

    def check(self, channels: int, grid: tuple[int, int]) -> None:
        """Accept every map."""


class Layer(StdConv):
    """A 3 x 3 convolution."""

    def __init__(self, spec: Spec, channels: int, *, stride: int) -> None:  # noqa: ARG002 - no settings
        super().__init__(channels, channels, 3, stride=stride)
