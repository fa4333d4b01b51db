"""BiT, the ResNet baseline of the Vision Transformer paper (Kolesnikov et al., arXiv 1912.11370).

Pre-activation units, group normalisation, weight standardisation. Parameter names are those of timm's
`resnetv2_*_bit`; as there, the classifier is a 1 x 1 convolution.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveInt

from vitrail import spec
from vitrail.contract import ImageSpec
from vitrail.model.resnets.classifier import ResNetClassifier, Root, shrink
from vitrail.nn.conv import PreActBottleneck, build_stages
from vitrail.tokens import Layout


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
        return Layout(shrink(self.image_size, 32))


class BigTransfer(ResNetClassifier):
    """A ResNet of pre-activation units."""

    spec: Spec

    def __init__(self, spec: Spec) -> None:
        super().__init__(
            spec,
            root=Root(channels=spec.channels, width=64 * spec.factor),
            stages=build_stages(PreActBottleneck, spec.layers, factor=spec.factor),
        )


Model = BigTransfer

LAYERS = {"50": (3, 4, 6, 3), "101": (3, 4, 23, 3), "152": (3, 8, 36, 3)}
GRAMMAR = re.compile(rf"resnetv2_(?P<depth>{'|'.join(LAYERS)})x(?P<factor>[1-8])_bit")


def spec_named(name: str) -> Spec | None:
    """Return the specification for a name such as `resnetv2_50x1_bit`, or None for a name of another family."""
    match = GRAMMAR.fullmatch(name)
    if match is None:
        return None
    return Spec.parse({"layers": LAYERS[match["depth"]], "factor": int(match["factor"])})
