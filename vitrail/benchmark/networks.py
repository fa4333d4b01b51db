"""The families of small networks that the claims compare, each in three sizes, for images of 16 x 16 pixels."""

from __future__ import annotations

from typing import Any, Literal

from vitrail.benchmark.experiment import TrainingRun

Size = Literal["mini", "small", "medium", "large"]
SIZES: tuple[Size, ...] = ("small", "medium", "large")
VIT: dict[Size, tuple[str, ...]] = {
    "mini": ("width=24", "depth=2", "heads=2", "hidden=48"),
    "small": ("width=48", "depth=2", "heads=2", "hidden=96"),
    "medium": ("width=64", "depth=3", "heads=2", "hidden=128"),
    "large": ("width=128", "depth=4", "heads=4", "hidden=256"),
}
HYBRID = ("stem.name=hybrid", "stem.layers=[1]", "stem.patch=1")
RESNET: dict[Size, tuple[str, ...]] = {
    "small": ("layers=[1,1]",),
    "medium": ("layers=[1,1,1]",),
    "large": ("layers=[1,2,3]",),
}


def vit(size: Size, *more: str, patch: int = 4, **options: Any) -> TrainingRun:
    """A Vision Transformer with patches of 4 x 4 pixels, 16 tokens, and mean pooling."""
    return TrainingRun(f"vit_nano_patch{patch}_gap_16", (*VIT[size], *more), **options)


def hybrid(size: Size, **options: Any) -> TrainingRun:
    """The same transformer on the feature map of a small ResNet, also 16 tokens."""
    return vit(size, *HYBRID, **options)


def resnet(size: Size, **options: Any) -> TrainingRun:
    """A ResNet of BiT's units: pre-activation, group normalisation, weight standardisation."""
    return TrainingRun("resnet26_16", RESNET[size], **options)


def conv_stem(size: Size, **options: Any) -> TrainingRun:
    """A Vision Transformer whose patch embedding is a stack of 3 x 3 convolutions."""
    return TrainingRun("vit_nano_conv4_16", VIT[size], **options)
