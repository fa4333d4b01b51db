"""The patch embedding: cut the input into equal patches and embed each linearly (arXiv 2010.11929, equation 1).

The length of `patch` sets the number of dimensions: one for sound, two for images, three for video.
"""

from __future__ import annotations

import math
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from vitrail import spec
from vitrail.tokens import Layout, Tokens, cut

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


class Spec(spec.Spec):
    """The size of a patch, one number per dimension of the input."""

    name: Literal["patch"] = "patch"
    patch: spec.SizeNd = (16, 16)

    @property
    def cell(self) -> tuple[int, ...]:
        """The part of the input that one token covers."""
        return self.patch


class Stem(nn.Module):
    """x_p E for each patch x_p; a convolution whose stride equals its kernel size cuts and embeds at once."""

    def __init__(self, spec: Spec, *, channels: int, width: int) -> None:
        super().__init__()
        self.cell = spec.cell
        convolution = CONVOLUTIONS[len(spec.patch)]
        self.proj = convolution(channels, width, spec.patch, stride=spec.patch)  # type: ignore[arg-type]

    def forward(self, image: Float[Tensor, "B C ..."]) -> Tokens:
        layout = Layout(cut(tuple(image.shape[2:]), self.cell))
        return Tokens(self.proj(image).flatten(2).transpose(1, 2), layout)

    def flops(self, size: tuple[int, ...]) -> int:
        """Count twice the multiply-adds for one input of this size."""
        return 2 * math.prod(cut(size, self.cell)) * self.proj.weight.numel()
