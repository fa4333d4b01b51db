"""The hybrid stem: a ResNet whose feature map is cut into patches (arXiv 2010.11929, section 3.1).

`layers=(3, 4, 9)` is the R50 of R50+B/16, `(3, 4, 6, 3)` that of R50+L/32, `(2, 2, 2, 2)` the R26 of R26+S/32, and
`()` the root alone, as in R+Ti/16, whose map is cut into 8 x 8 patches.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from vitrail import spec
from vitrail.nn.conv import Bottleneck, GroupNorm, StdConv, build_stages, conv_flops, pad_same, stage_flops
from vitrail.tokens import Layout, Tokens, cut


class Spec(spec.Spec):
    """The number of units in each stage of the ResNet, and the patch size on its feature map."""

    name: Literal["hybrid"] = "hybrid"
    layers: Annotated[tuple[PositiveInt, ...], Field(max_length=4)] = (3, 4, 9)
    patch: spec.Size2d = (1, 1)

    @property
    def cell(self) -> tuple[int, ...]:
        """The part of the input that one token covers: the root divides by 4, each stage but the first by 2."""
        return tuple(side * 2 ** (2 + max(len(self.layers) - 1, 0)) for side in self.patch)


class Root(nn.Module):
    """A 7 x 7 convolution and max pooling; each halves the resolution."""

    def __init__(self, *, channels: int) -> None:
        super().__init__()
        self.conv = StdConv(channels, 64, 7, stride=2, same=True)
        self.norm = GroupNorm(64)

    def forward(self, image: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B 64 Y2 X2"]:
        x = self.norm(self.conv(image)).relu()
        return F.max_pool2d(pad_same(x, 3, 2, value=-torch.inf), 3, stride=2)


class Backbone(nn.Module):
    """A ResNet without its classifier."""

    def __init__(self, layers: tuple[int, ...], *, channels: int) -> None:
        super().__init__()
        self.stem = Root(channels=channels)
        self.stages = build_stages(Bottleneck, layers, factor=1)

    def forward(self, image: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B D Y2 X2"]:
        return self.stages(self.stem(image))


class Stem(nn.Module):
    """The ResNet, then a linear embedding of the patches of its feature map."""

    def __init__(self, spec: Spec, *, channels: int, width: int) -> None:
        super().__init__()
        self.cell = spec.cell
        features = 256 * 2 ** (len(spec.layers) - 1) if spec.layers else 64
        self.backbone = Backbone(spec.layers, channels=channels) if spec.layers else Root(channels=channels)
        self.proj = nn.Conv2d(features, width, spec.patch, stride=spec.patch)

    def forward(self, image: Float[Tensor, "B C Y X"]) -> Tokens:
        layout = Layout(cut(tuple(image.shape[2:]), self.cell))
        return Tokens(self.proj(self.backbone(image)).flatten(2).transpose(1, 2), layout)

    def flops(self, size: tuple[int, ...]) -> int:
        """Count twice the multiply-adds for one input of this size."""
        rows, columns = size
        root = self.backbone if isinstance(self.backbone, Root) else self.backbone.stem
        total = conv_flops(root.conv, (-(-rows // 2), -(-columns // 2)))
        if isinstance(self.backbone, Backbone):
            map_size = (-(-rows // 4), -(-columns // 4))
            for stage in self.backbone.stages:
                map_size, cost = stage_flops(stage, map_size)
                total += cost
        rows, columns = cut((rows, columns), self.cell)
        return total + conv_flops(self.proj, (rows, columns))
