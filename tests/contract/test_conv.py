"""Residual units: another layer fits in the place of their 3 x 3 convolution."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tests.conftest import fill
from vitrail.nn.conv import Bottleneck, PreActBottleneck, Stage, build_stages, stage_flops

UNITS = [PreActBottleneck, Bottleneck]


class Pooled(nn.Module):
    """A linear layer on each pixel, then average pooling with the stride."""

    def __init__(self, channels: int, *, stride: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, channels, bias=False)
        self.pool = nn.AvgPool2d(stride, ceil_mode=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(self.linear(x.movedim(1, -1)).movedim(-1, 1))

    def flops(self, size: tuple[int, int]) -> int:
        return 2 * size[0] * size[1] * self.linear.weight.numel()


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("stride", [1, 2])
def test_another_layer_replaces_the_second_convolution(unit: Any, stride: int) -> None:
    block = fill(unit(128, 256, stride=stride, project=True, mix=Pooled))
    assert isinstance(block.conv2, Pooled)
    x = torch.randn(2, 128, 7, 6)
    assert block(x).shape == (2, 256, -(-7 // stride), -(-6 // stride))
    block(x).sum().backward()
    assert block.conv2.linear.weight.grad.abs().max() > 0


@pytest.mark.parametrize("unit", UNITS)
def test_without_it_names_and_weights_are_as_ever(unit: Any) -> None:
    block = unit(128, 256, stride=2, project=True)
    assert block.conv2.weight.shape == (64, 64, 3, 3)
    assert [name for name in block.state_dict() if "conv2" in name] == ["conv2.weight"]


@pytest.mark.parametrize("mix", [None, Pooled])
@pytest.mark.parametrize("unit", UNITS)
def test_the_flops_of_a_stage_include_the_layer(unit: Any, mix: Any) -> None:
    stages = build_stages(partial(unit, mix=mix), (1, 2), factor=1).requires_grad_(False)
    with FlopCounterMode(display=False) as counter:
        output = stages(torch.randn(1, 64, 9, 6))
    size, total = (9, 6), 0
    for stage in stages:
        assert isinstance(stage, Stage)
        size, cost = stage_flops(stage, size)
        total += cost
    assert size == tuple(output.shape[2:])
    assert total == counter.get_total_flops()
