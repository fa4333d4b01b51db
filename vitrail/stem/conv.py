"""A convolutional stem, for data sets too small to learn locality from.

After "Early Convolutions Help Transformers See Better" (Xiao et al., arXiv 2106.14881): 3 x 3 convolutions replace
the patch embedding. Here each resolution has pre-activation residual units (arXiv 1603.05027) and group norms, which
normalise each image separately, so the result does not depend on the number of processes.
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

GROUP_CHANNELS = 16


class Spec(spec.Spec):
    """Channels, stride and number of residual units of each convolution."""

    name: Literal["conv"] = "conv"
    channels: Annotated[tuple[PositiveInt, ...], Field(min_length=1, max_length=6)] = (32, 64, 128)
    strides: tuple[Literal[1, 2], ...] = (1, 2, 2)
    units: tuple[NonNegativeInt, ...] = (0, 1, 1)

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if not len(self.channels) == len(self.strides) == len(self.units):
            raise SpecError(
                "a stem's channels, strides and units need one entry per convolution.",
                got=f"{len(self.channels)}, {len(self.strides)} and {len(self.units)} entries.",
            )
        return self

    @property
    def cell(self) -> tuple[int, ...]:
        """The part of the input that one token covers."""
        return (math.prod(self.strides),) * 2


def norm(channels: int) -> nn.GroupNorm:
    """Build a group norm with about sixteen channels per group."""
    groups = max(1, channels // GROUP_CHANNELS)
    return nn.GroupNorm(groups if channels % groups == 0 else 1, channels)


class ResidualUnit(nn.Module):
    """x + conv(relu(norm(x)))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = norm(channels)
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    def forward(self, x: Float[Tensor, "B D Y X"]) -> Float[Tensor, "B D Y X"]:
        return x + self.conv(self.norm(x).relu())


class Stage(nn.Module):
    """Norm, ReLU, a convolution that may halve the map, then residual units; the first stage has no norm and ReLU."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, units: int, first: bool) -> None:
        super().__init__()
        self.norm = nn.Identity() if first else norm(inputs)
        self.act = nn.Identity() if first else nn.ReLU()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.units = nn.Sequential(*[ResidualUnit(outputs) for _ in range(units)])

    def forward(self, x: Float[Tensor, "B D Y X"]) -> Float[Tensor, "B D2 Y2 X2"]:
        return self.units(self.conv(self.act(self.norm(x))))


class Stem(nn.Module):
    """The convolutions, then a linear projection to the width of the tokens."""

    def __init__(self, spec: Spec, *, channels: int, width: int) -> None:
        super().__init__()
        self.cell = spec.cell
        in_channels = (channels, *spec.channels[:-1])
        self.steps = nn.Sequential(
            *[
                Stage(inputs, outputs, stride=stride, units=units, first=index == 0)
                for index, (inputs, outputs, stride, units) in enumerate(
                    zip(in_channels, spec.channels, spec.strides, spec.units, strict=True)
                )
            ]
        )
        self.norm = norm(spec.channels[-1])
        self.proj = nn.Conv2d(spec.channels[-1], width, 1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the filters to preserve the scale of the gradients."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, image: Float[Tensor, "B C Y X"]) -> Tokens:
        layout = Layout(cut(tuple(image.shape[2:]), self.cell))
        return Tokens(self.proj(self.norm(self.steps(image)).relu()).flatten(2).transpose(1, 2), layout)

    def flops(self, size: tuple[int, ...]) -> int:
        """Count twice the multiply-adds for one input of this size."""
        total, (rows, columns) = 0, size
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and module is not self.proj:
                rows, columns = -(-rows // module.stride[0]), -(-columns // module.stride[1])
                total += conv_flops(module, (rows, columns))
        return total + conv_flops(self.proj, (rows, columns))
