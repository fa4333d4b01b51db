"""Multinomial logistic regression on pixels, the baseline to beat (arXiv 1708.07747, table 3, for Fashion-MNIST).

The image is one token made of all its pixels, and there is no encoder, so everything that works with models (export,
report, service) works with this one too. Without pretrained weights, `vitrail train` fits it first, and returns it if
nothing better can be trained in the time.
"""

from __future__ import annotations

import re

from einops import rearrange
from jaxtyping import Float
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from vitrail import spec
from vitrail.contract import Classifier, ImageSpec
from vitrail.errors import ShapeError
from vitrail.tokens import Layout, Tokens, check_input, format_size


class Spec(ImageSpec):
    """The image size, and the numbers of channels and classes."""

    image_size: spec.Size2d = (32, 32)
    channels: PositiveInt = 3
    num_classes: NonNegativeInt = 1000

    @property
    def width(self) -> int:
        """The number of values in an image."""
        return self.channels * self.image_size[0] * self.image_size[1]

    @property
    def layout(self) -> Layout:
        """One cell: the image."""
        return Layout((1, 1))


class LinearClassifier(Classifier):
    """A linear layer on all pixels."""

    spec: Spec

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        self.head = self._new_head()

    def _new_head(self) -> nn.Module:
        """Build a zero-initialised classifier."""
        if not self.spec.num_classes:
            return nn.Identity()
        head = nn.Linear(self.spec.width, self.spec.num_classes)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        return head

    def replace_head(self, num_classes: int) -> None:
        """Replace the classifier by a zero-initialised one for `num_classes` classes."""
        like = next(self.parameters(), None)
        self.spec = self.spec.override({"num_classes": num_classes})
        self.head = self._new_head()
        if like is not None:
            self.head.to(like.device, like.dtype)

    @property
    def first_weight(self) -> str:
        """The name of the weight that is applied to the input channels."""
        return "head.weight"

    def tokenize(self, image: Float[Tensor, "B C Y X"]) -> Tokens:
        """Flatten the image to one token."""
        check_input(image, self.spec.channels)
        size = (image.shape[2], image.shape[3])
        if size != self.spec.image_size:
            raise ShapeError(
                "a linear classifier has one weight per pixel, so it takes images of one size.",
                got=f"{format_size(size)}.",
                hint=f"{format_size(self.spec.image_size)}.",
            )
        return Tokens(rearrange(image, "B C Y X -> B 1 (C Y X)"), self.spec.layout)

    def encode(self, tokens: Tokens) -> Tokens:
        """Return the tokens unchanged: there is no encoder."""
        return tokens

    def pool(self, tokens: Tokens) -> Float[Tensor, "B D"]:
        """Return the only token."""
        return tokens.x[:, 0]

    def flops(self) -> int:
        """Count twice the multiply-adds for one image."""
        return 2 * self.spec.width * self.spec.num_classes


Model = LinearClassifier
GRAMMAR = re.compile(r"linear_(?P<image>[0-9]{1,3})")


def spec_named(name: str) -> Spec | None:
    """Return the specification for a name such as `linear_32`, or None for a name of another family."""
    match = GRAMMAR.fullmatch(name)
    return None if match is None else Spec.parse({"image_size": int(match["image"])})
