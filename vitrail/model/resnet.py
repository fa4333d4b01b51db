"""ResNets whose 3 x 3 convolutions are replaced or augmented by attention (the layers of `nn/mix`).

Pre-activation units as in BiT (arXiv 1912.11370), so that networks differ in one layer only. `resnet26` has the units
of Ramachandran et al. (arXiv 1906.05909, section 4.1), `san10_*` the ten units of Zhao et al.'s SAN10 (arXiv
2004.13621, table 2), those of its first two stages in one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from vitrail import plug, spec
from vitrail.contract import ImageSpec
from vitrail.errors import SpecError
from vitrail.model.resnets.classifier import ResNetClassifier, Root, shrink
from vitrail.nn.conv import NUM_GROUPS, PreActBottleneck, stack_stages
from vitrail.nn.mix import conv
from vitrail.tokens import Layout

MIXES = "vitrail.nn.mix"
MIN_WINDOW = 3  # a smaller one sees only its own cell


class Spec(ImageSpec):
    """Everything that determines what such a ResNet computes."""

    image_size: spec.Size2d = (224, 224)
    channels: PositiveInt = 3
    num_classes: NonNegativeInt = 1000
    layers: Annotated[tuple[PositiveInt, ...], Field(min_length=1, max_length=5)] = (1, 2, 4, 1)
    """The number of units in each stage; every stage but the first halves the resolution."""
    root_width: PositiveInt = 64
    """The channels of the root, and of the middle layers in the first stage; each stage doubles them."""
    root_stride: Literal[1, 2, 4] = 4
    """How many times smaller than the image the root's feature map is."""
    mix: spec.registry_field(MIXES) = conv.Spec()  # type: ignore[valid-type]
    conv_stages: NonNegativeInt = 0
    """The number of stages that keep their convolutions, from the first one on."""

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if self.root_width % NUM_GROUPS:
            raise SpecError(
                f"root_width must be a multiple of {NUM_GROUPS}, the number of groups in a normalisation.",
                got=f"root_width={self.root_width}.",
                hint=f"root_width={-(-self.root_width // NUM_GROUPS) * NUM_GROUPS}.",
            )
        if self.conv_stages >= len(self.layers):
            raise SpecError(
                "conv_stages must leave a stage for mix.",
                got=f"conv_stages={self.conv_stages}, {len(self.layers)} stages.",
                hint=f"conv_stages={len(self.layers) - 1}, or mix=conv.",
            )
        for index, grid in enumerate(self.smallest_maps()):
            if index >= self.conv_stages:
                self.mix.check(self.root_width * 2**index, grid)
        return self

    @property
    def width(self) -> int:
        """The number of channels of the last feature map."""
        return 4 * self.root_width * 2 ** (len(self.layers) - 1)

    @property
    def layout(self) -> Layout:
        """The grid of the last feature map, rounded up as the convolutions do."""
        return Layout(shrink(self.image_size, self.root_stride * 2 ** (len(self.layers) - 1)))

    def smallest_maps(self) -> Iterator[tuple[int, int]]:
        """The size of the smallest map that the middle layers of each stage take."""
        size = shrink(self.image_size, self.root_stride)
        for index, depth in enumerate(self.layers):
            after = shrink(size, 1 if index == 0 else 2)
            yield size if depth == 1 else after
            size = after


class ResNet(ResNetClassifier):
    """A ResNet of pre-activation units with any middle layer."""

    spec: Spec

    def __init__(self, spec: Spec) -> None:
        mix = partial(plug.load(MIXES, spec.mix.name).Layer, spec.mix)
        units = [
            PreActBottleneck if index < spec.conv_stages else partial(PreActBottleneck, mix=mix)
            for index in range(len(spec.layers))
        ]
        super().__init__(
            spec,
            root=Root(channels=spec.channels, width=spec.root_width, stride=spec.root_stride),
            stages=stack_stages(units, spec.layers, width=spec.root_width),
        )


Model = ResNet

SMALL_SIDE = 64  # images up to this size get a narrow network, whose root only halves them
FAMILIES: dict[str, dict[str, Any]] = {
    "resnet26": {},
    "resnet26_sasa": {"mix": "sasa"},
    "resnet26_lrnet": {"mix": "lrnet"},
    "resnet26_axial": {"mix": "axial"},
    # The paper augments maps of 28 x 28 cells and less: scores of all pairs of larger ones take too much memory.
    "resnet26_augmented": {"mix": "augmented", "conv_stages": 1},
    "san10_pairwise": {"mix": "san_pairwise", "layers": (3, 2, 4, 1)},
    "san10_patchwise": {"mix": "san_patchwise", "layers": (3, 2, 4, 1)},
}
GRAMMAR = re.compile(rf"(?P<family>{'|'.join(sorted(FAMILIES, reverse=True))})(?:_(?P<image>[0-9]{{1,4}}))?")


def spec_named(name: str) -> Spec | None:
    """Return the specification for a name such as `resnet26_sasa` or, for images of 32 x 32 pixels,
    `resnet26_sasa_32`; None for a name of another family.
    """
    match = GRAMMAR.fullmatch(name)
    if match is None:
        return None
    fields = dict(FAMILIES[match["family"]])
    side = int(match["image"] or Spec.model_fields["image_size"].default[0])
    if side <= SMALL_SIDE:
        fields.update(root_width=32, root_stride=2)
    plain = Spec.parse({**fields, "mix": "conv", "conv_stages": 0, "image_size": side})
    mix = plug.load(MIXES, fields.get("mix", "conv")).Spec()
    if hasattr(mix, "window"):  # the largest that fits, up to the paper's
        fitting = min(min(grid) for grid in plain.smallest_maps())
        if fitting < MIN_WINDOW:
            raise SpecError(
                "the image is too small for windows in every stage.",
                got=f"{side} pixels, a map of {fitting} cells in the last stage.",
                hint=f"{match['family']}_32.",
            )
        fields["mix"] = mix.override({"window": min(mix.window, fitting - 1 + fitting % 2)})
    return Spec.parse({**fields, "image_size": side})
