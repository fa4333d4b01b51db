"""BiT, the ResNet baseline of the Vision Transformer paper (Kolesnikov et al., arXiv 1912.11370).

Pre-activation units, group normalisation, weight standardisation. Parameter names are those of timm's
`resnetv2_*_bit`; as there, the classifier is a 1 x 1 convolution.
"""

from __future__ import annotations

import re
from typing import Annotated

import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from vitrail import spec
from vitrail.contract import Classifier, ImageSpec
from vitrail.nn.conv import GroupNorm, PreActBottleneck, StdConv, build_stages, conv_flops, stage_flops
from vitrail.nn.head import mean_of_cells
from vitrail.tokens import Layout, Tokens, check_input


class Spec(ImageSpec):
    """The number of units in each of the four stages, and the width as a multiple of a ResNet's."""

    image_size: spec.Size2d = (224, 224)
    channels: PositiveInt = 3
    num_classes: NonNegativeInt = 1000
    layers: Annotated[tuple[PositiveInt, ...], Field(min_length=4, max_length=4)] = (3, 4, 6, 3)
    factor: PositiveInt = 1

    @property
    def width(self) -> int:
        """The number of channels of the last feature map."""
        return 2048 * self.factor

    @property
    def layout(self) -> Layout:
        """The grid of the last feature map: 1/32 of the image size, rounded up as the convolutions do."""
        rows, columns = (-(-side // 32) for side in self.image_size)
        return Layout((rows, columns))


class Root(nn.Module):
    """A 7 x 7 convolution and max pooling; each halves the resolution. The pooling is padded with zeros, not -inf."""

    def __init__(self, *, channels: int, width: int) -> None:
        super().__init__()
        self.conv = StdConv(channels, width, 7, stride=2)

    def forward(self, image: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B D Y2 X2"]:
        return F.max_pool2d(F.pad(self.conv(image), (1, 1, 1, 1)), 3, stride=2)


class Head(nn.Module):
    """The classifier: a 1 x 1 convolution on the pooled features."""

    def __init__(self, *, width: int, num_classes: int) -> None:
        super().__init__()
        self.fc = nn.Conv2d(width, num_classes, 1) if num_classes else nn.Identity()

    def forward(self, pooled: Float[Tensor, "B D"]) -> Float[Tensor, "B K"]:
        return self.fc(pooled[:, :, None, None]).flatten(1)


class BigTransfer(Classifier):
    """Root, four stages, mean pooling and a linear classifier; feature maps are passed on as tokens on a grid."""

    spec: Spec

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        self.stem = Root(channels=spec.channels, width=64 * spec.factor)
        self.stages = build_stages(PreActBottleneck, spec.layers, factor=spec.factor)
        self.norm = GroupNorm(spec.width)
        self.head = Head(width=spec.width, num_classes=spec.num_classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the filters at random (standardisation removes their scale) and the head with zeros."""
        for module in self.modules():
            if isinstance(module, StdConv):
                nn.init.kaiming_normal_(module.weight)
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)

    def replace_head(self, num_classes: int) -> None:
        """Replace the classifier by a zero-initialised one for `num_classes` classes."""
        like = next(self.parameters())
        self.spec = self.spec.override({"num_classes": num_classes})
        self.head = Head(width=self.spec.width, num_classes=num_classes).to(like.device, like.dtype)
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)

    @property
    def first_weight(self) -> str:
        """The name of the weight that is applied to the input channels."""
        return "stem.conv.weight"

    def tokenize(self, image: Float[Tensor, "B C Y X"]) -> Tokens:
        """Compute the root's feature map, one token per cell."""
        check_input(image, self.spec.channels)
        return _tokens(self.stem(image))

    def encode(self, tokens: Tokens) -> Tokens:
        """Apply the stages and the last normalisation."""
        tokens.require_grid("a convolutional network")
        rows, columns = tokens.layout.grid
        image = rearrange(tokens.x, "B (Y X) D -> B D Y X", Y=rows, X=columns)
        return _tokens(self.norm(self.stages(image)).relu())

    def pool(self, tokens: Tokens) -> Float[Tensor, "B D"]:
        """Pool the tokens to one vector per image."""
        return mean_of_cells(tokens)

    def flops(self) -> int:
        """Count twice the multiply-adds for one image of `image_size`."""
        size = (-(-self.spec.image_size[0] // 2), -(-self.spec.image_size[1] // 2))
        total = conv_flops(self.stem.conv, size)
        size = (-(-size[0] // 2), -(-size[1] // 2))
        for stage in self.stages:
            size, cost = stage_flops(stage, size)
            total += cost
        return total + 2 * self.spec.width * self.spec.num_classes


def _tokens(image: Float[Tensor, "B D Y X"]) -> Tokens:
    return Tokens(rearrange(image, "B D Y X -> B (Y X) D"), Layout((image.shape[2], image.shape[3])))


Model = BigTransfer

LAYERS = {"50": (3, 4, 6, 3), "101": (3, 4, 23, 3), "152": (3, 8, 36, 3)}
GRAMMAR = re.compile(rf"resnetv2_(?P<depth>{'|'.join(LAYERS)})x(?P<factor>[1-8])_bit")


def spec_named(name: str) -> Spec | None:
    """Return the specification for a name such as `resnetv2_50x1_bit`, or None for a name of another family."""
    match = GRAMMAR.fullmatch(name)
    if match is None:
        return None
    return Spec.parse({"layers": LAYERS[match["depth"]], "factor": int(match["factor"])})
