"""What ResNets have in common: a root, stages of residual units, mean pooling and a linear classifier.

Parameter names are those of timm's `resnetv2_*_bit`; as there, the classifier is a 1 x 1 convolution.
"""

from __future__ import annotations

import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.contract import Classifier, ImageSpec
from vitrail.nn.conv import GroupNorm, StdConv, conv_flops, stage_flops
from vitrail.nn.head import mean_of_cells
from vitrail.tokens import Layout, Tokens, check_input


class Root(nn.Module):
    """The first layers: with stride 4 a 7 x 7 convolution and max pooling, each of which halves the resolution, for
    photos; with stride 1 or 2 a 3 x 3 convolution, for small images. The pooling is padded with zeros, not -inf.
    """

    def __init__(self, *, channels: int, width: int, stride: int = 4) -> None:
        super().__init__()
        self.stride, self.pools = stride, stride == 4
        self.conv = StdConv(channels, width, 7 if self.pools else 3, stride=2 if self.pools else stride)

    def forward(self, image: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B D Y2 X2"]:
        x = self.conv(image)
        return F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, stride=2) if self.pools else x

    def flops(self, size: tuple[int, int]) -> int:
        """Count twice the multiply-adds for an image of this size."""
        return conv_flops(self.conv, shrink(size, self.conv.stride[0]))


class Head(nn.Module):
    """The classifier: a 1 x 1 convolution on the pooled features."""

    def __init__(self, *, width: int, num_classes: int) -> None:
        super().__init__()
        self.fc = nn.Conv2d(width, num_classes, 1) if num_classes else nn.Identity()

    def forward(self, pooled: Float[Tensor, "B D"]) -> Float[Tensor, "B K"]:
        return self.fc(pooled[:, :, None, None]).flatten(1)


class ResNetClassifier(Classifier):
    """Root, stages, mean pooling and a linear classifier; feature maps are passed on as tokens on a grid."""

    spec: ImageSpec

    def __init__(self, spec: ImageSpec, *, root: Root, stages: nn.Sequential) -> None:
        super().__init__()
        self.spec = spec
        self.stem, self.stages = root, stages
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
        rows, columns = self.spec.image_size
        total, size = self.stem.flops((rows, columns)), shrink((rows, columns), self.stem.stride)
        for stage in self.stages:
            size, cost = stage_flops(stage, size)
            total += cost
        return total + 2 * self.spec.width * self.spec.num_classes


def shrink(size: tuple[int, int], stride: int) -> tuple[int, int]:
    """The size of a map after layers with this stride in all, which round up."""
    return -(-size[0] // stride), -(-size[1] // stride)


def _tokens(image: Float[Tensor, "B D Y X"]) -> Tokens:
    return Tokens(rearrange(image, "B D Y X -> B (Y X) D"), Layout((image.shape[2], image.shape[3])))
