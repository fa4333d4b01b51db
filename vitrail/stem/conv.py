"""A stem of small convolutions, which gives a Vision Transformer the sense of nearness that small data cannot teach.

After "Early Convolutions Help Transformers See Better" (Xiao et al., arXiv 2106.14881): 3 x 3 convolutions instead of
the patch; here with pre-activation residual units (arXiv 1603.05027) at each resolution, and group norms, which count
each picture for itself, so that any number of processes computes the same.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from jaxtyping import Float
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator
from torch import Tensor, nn

from vitrail import spec
from vitrail.errors import SpecError
from vitrail.nn.conv import conv_flops
from vitrail.tokens import Layout, Tokens, cut

GROUP = 16  # channels


class Spec(spec.Spec):
    """Channels, stride and number of residual units for each convolution."""

    name: Literal["conv"] = "conv"
    channels: Annotated[tuple[PositiveInt, ...], Field(min_length=1, max_length=6)] = (32, 64, 128)
    strides: tuple[Literal[1, 2], ...] = (1, 2, 2)
    units: tuple[NonNegativeInt, ...] = (0, 1, 1)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if not len(self.channels) == len(self.strides) == len(self.units):
            raise SpecError(
                "channels, strides and units of a stem have one entry for each convolution.",
                got=f"{len(self.channels)}, {len(self.strides)} and {len(self.units)} of them.",
            )
        return self

    @property
    def cell(self) -> tuple[int, ...]:
        """How much of the input one token covers."""
        return (math.prod(self.strides),) * 2


def norm(channels: int) -> nn.GroupNorm:
    """Groups of about sixteen channels."""
    groups = max(1, channels // GROUP)
    return nn.GroupNorm(groups if channels % groups == 0 else 1, channels)


class Unit(nn.Module):
    """x + conv(relu(norm(x)))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = norm(channels)
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    def forward(self, x: Float[Tensor, "B D Y X"]) -> Float[Tensor, "B D Y X"]:
        return x + self.conv(self.norm(x).relu())


class Step(nn.Module):
    """norm, relu, a convolution that may halve the map, then residual units; the first has nothing to normalise."""

    def __init__(self, given: int, channels: int, *, stride: int, units: int, first: bool) -> None:
        super().__init__()
        self.norm = nn.Identity() if first else norm(given)
        self.act = nn.Identity() if first else nn.ReLU()
        self.conv = nn.Conv2d(given, channels, 3, stride=stride, padding=1, bias=False)
        self.units = nn.Sequential(*[Unit(channels) for _ in range(units)])

    def forward(self, x: Float[Tensor, "B D Y X"]) -> Float[Tensor, "B D2 Y2 X2"]:
        return self.units(self.conv(self.act(self.norm(x))))


class Stem(nn.Module):
    """The convolutions, and a linear map to the width of the tokens."""

    def __init__(self, spec: Spec, *, channels: int, width: int) -> None:
        super().__init__()
        self.cell = spec.cell
        given = (channels, *spec.channels[:-1])
        self.steps = nn.Sequential(
            *[
                Step(before, after, stride=stride, units=units, first=number == 0)
                for number, (before, after, stride, units) in enumerate(
                    zip(given, spec.channels, spec.strides, spec.units, strict=True)
                )
            ]
        )
        self.norm = norm(spec.channels[-1])
        self.proj = nn.Conv2d(spec.channels[-1], width, 1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Filters that keep the scale of what comes back through them."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, image: Float[Tensor, "B C Y X"]) -> Tokens:
        layout = Layout(cut(tuple(image.shape[2:]), self.cell))
        return Tokens(self.proj(self.norm(self.steps(image)).relu()).flatten(2).transpose(1, 2), layout)

    def flops(self, size: tuple[int, ...]) -> int:
        """Twice the multiply-adds for one input of this size."""
        total, (rows, columns) = 0, size
        for part in self.modules():
            if isinstance(part, nn.Conv2d) and part is not self.proj:
                rows, columns = -(-rows // part.stride[0]), -(-columns // part.stride[1])
                total += conv_flops(part, (rows, columns))
        return total + conv_flops(self.proj, (rows, columns))
