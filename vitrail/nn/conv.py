"""Convolutional layers of the BiT ResNets and the hybrid stems: weight standardisation and bottlenecks.

Kolesnikov et al., "Big Transfer", arXiv 1912.11370; Qiao et al., "Weight Standardization", arXiv 1903.10520.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import SpecError

NUM_GROUPS = 32  # in every group normalisation, as in the paper
WEIGHT_EPS = 1e-8  # of weight standardisation


class StdConv(nn.Conv2d):
    """A convolution without bias whose filters are standardised to mean 0 and variance 1.

    `same` pads like TensorFlow: as little as gives ceil(size / stride) outputs, the odd pixel at the end.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, same: bool = False) -> None:
        super().__init__(inputs, outputs, kernel, stride=stride, padding=0 if same else kernel // 2, bias=False)
        self.same, self.fixed = same, False

    def forward(self, x: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B D Y2 X2"]:
        if self.same:
            x = pad_same(x, self.kernel_size[0], self.stride[0])
        return F.conv2d(x, self.filters(), None, self.stride, self.padding)

    def filters(self) -> Float[Tensor, "D C k k"]:
        """The standardised filters."""
        if self.fixed:
            return self.weight
        # A batch norm with the filters as channels rounds exactly as timm does; ReLUs would magnify a difference.
        filters = F.batch_norm(self.weight.flatten(1)[None], None, None, training=True, eps=WEIGHT_EPS)
        return filters.view_as(self.weight)

    def fix(self) -> None:
        """Standardise the filters once and for all, for a model that is not trained any more."""
        self.weight = nn.Parameter(self.filters().detach(), requires_grad=False)
        self.fixed = True


class GroupNorm(nn.GroupNorm):
    """Group normalisation with 32 groups."""

    def __init__(self, channels: int) -> None:
        if channels % NUM_GROUPS:
            raise SpecError(f"group normalisation needs a multiple of {NUM_GROUPS} channels.", got=f"{channels}.")
        super().__init__(NUM_GROUPS, channels)


class Shortcut(nn.Module):
    """The projection on a shortcut whose shape changes."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, same: bool, normed: bool) -> None:
        super().__init__()
        self.conv = StdConv(inputs, outputs, 1, stride=stride, same=same)
        self.norm = GroupNorm(outputs) if normed else nn.Identity()

    def forward(self, x: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B D Y2 X2"]:
        return self.norm(self.conv(x))


class Mix(Protocol):
    """Builds the middle layer of a residual unit: from maps of `channels` channels to maps of as many.

    With stride 2 the layer halves the resolution, rounding up. A layer other than a convolution counts its own cost in
    `flops(size)`, where `size` is that of the incoming map.
    """

    def __call__(self, channels: int, *, stride: int) -> nn.Module: ...


class PreActBottleneck(nn.Module):
    """BiT's residual unit: normalisation and ReLU before each of three convolutions; `mix` replaces the second."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, project: bool, mix: Mix | None = None) -> None:
        super().__init__()
        middle = outputs // 4
        self.stride = stride
        self.downsample = Shortcut(inputs, outputs, stride=stride, same=False, normed=False) if project else None
        self.norm1 = GroupNorm(inputs)
        self.conv1 = StdConv(inputs, middle, 1)
        self.norm2 = GroupNorm(middle)
        self.conv2 = mix(middle, stride=stride) if mix else StdConv(middle, middle, 3, stride=stride)
        self.norm3 = GroupNorm(middle)
        self.conv3 = StdConv(middle, outputs, 1)

    def forward(self, x: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B D Y2 X2"]:
        active = self.norm1(x).relu()
        shortcut = x if self.downsample is None else self.downsample(active)
        y = self.conv1(active)
        y = self.conv2(self.norm2(y).relu())
        return shortcut + self.conv3(self.norm3(y).relu())


class Bottleneck(nn.Module):
    """The hybrid stem's residual unit: normalisation after each convolution, ReLU after the sum; `mix` replaces the
    second convolution.
    """

    def __init__(self, inputs: int, outputs: int, *, stride: int, project: bool, mix: Mix | None = None) -> None:
        super().__init__()
        middle = outputs // 4
        self.stride = stride
        self.downsample = Shortcut(inputs, outputs, stride=stride, same=True, normed=True) if project else None
        self.conv1 = StdConv(inputs, middle, 1, same=True)
        self.norm1 = GroupNorm(middle)
        self.conv2 = mix(middle, stride=stride) if mix else StdConv(middle, middle, 3, stride=stride, same=True)
        self.norm2 = GroupNorm(middle)
        self.conv3 = StdConv(middle, outputs, 1, same=True)
        self.norm3 = GroupNorm(outputs)

    def forward(self, x: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B D Y2 X2"]:
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.norm1(self.conv1(x)).relu()
        y = self.norm2(self.conv2(y)).relu()
        return (shortcut + self.norm3(self.conv3(y))).relu()


Unit = Callable[..., PreActBottleneck | Bottleneck]
"""A residual unit's class, or `partial(Bottleneck, mix=...)`."""


class Stage(nn.Module):
    """Residual units at one resolution; the first unit widens and, except in the first stage, halves the resolution."""

    def __init__(self, unit: Unit, inputs: int, outputs: int, *, depth: int, stride: int) -> None:
        super().__init__()
        first = unit(inputs, outputs, stride=stride, project=True)
        rest = [unit(outputs, outputs, stride=1, project=False) for _ in range(depth - 1)]
        self.blocks = nn.Sequential(first, *rest)

    def forward(self, x: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B D Y2 X2"]:
        return self.blocks(x)


def build_stages(unit: Unit, layers: tuple[int, ...], *, factor: int) -> nn.Sequential:
    """Build the stages of a ResNet, of width 256, 512, 1024, 2048 times `factor`."""
    return stack_stages([unit] * len(layers), layers, width=64 * factor)


def stack_stages(units: Sequence[Unit], layers: tuple[int, ...], *, width: int) -> nn.Sequential:
    """Build the stages of a ResNet, each of its own kind of unit: 4, 8, 16, ... times as wide as the root."""
    stages, inputs = [], width
    for index, (unit, depth) in enumerate(zip(units, layers, strict=True)):
        outputs = 4 * width * 2**index
        stages.append(Stage(unit, inputs, outputs, depth=depth, stride=1 if index == 0 else 2))
        inputs = outputs
    return nn.Sequential(*stages)


def pad_same(x: Float[Tensor, "B C Y X"], kernel: int, stride: int, value: float = 0.0) -> Float[Tensor, "B C Y2 X2"]:
    """Pad with zeros (or `value`) so that ceil(size / stride) windows fit."""
    pads: list[int] = []
    for size in (x.shape[-1], x.shape[-2]):
        total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        pads += [total // 2, total - total // 2]
    return F.pad(x, pads, value=value) if any(pads) else x


def conv_flops(conv: nn.Conv2d, out: tuple[int, int]) -> int:
    """Count twice the multiply-adds of a convolution with an output of this size."""
    return 2 * out[0] * out[1] * conv.weight.numel()


def stage_flops(stage: nn.Module, size: tuple[int, int]) -> tuple[tuple[int, int], int]:
    """Return a stage's output size for this input size, and twice its multiply-adds."""
    total = 0
    assert isinstance(stage, Stage)
    for unit in stage.blocks:
        assert isinstance(unit, PreActBottleneck | Bottleneck)
        out = (-(-size[0] // unit.stride), -(-size[1] // unit.stride))
        total += conv_flops(unit.conv1, size) + conv_flops(unit.conv3, out)
        middle = unit.conv2
        total += conv_flops(middle, out) if isinstance(middle, nn.Conv2d) else middle.flops(size)  # type: ignore[operator]
        if unit.downsample is not None:
            total += conv_flops(unit.downsample.conv, out)
        size = out
    return size, total
