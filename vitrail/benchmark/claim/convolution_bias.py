"""Convolutions know that neighbouring pixels belong together, which helps when data is not abundant."""

from __future__ import annotations

from vitrail.benchmark.experiment import Experiment
from vitrail.benchmark.networks import conv_stem, resnet, vit
from vitrail.benchmark.verdict import Chart, Contrast, Measured, contrast, percent_curve

DECK = "004"
CLAIM = "With mid-sized training data the inductive bias of convolutions helps."
PAPER = "Pretrained on ImageNet-21k, BiT is on a par with ViT; convolution stems help ViTs train (arXiv 2106.14881)."
EXPERIMENT = (
    "Three networks of 0.4 to 0.5 million parameters: a ViT, a ViT with a convolutional stem and fewer blocks, and a "
    "ResNet; half a teraflop for every run, 10,000 images of CIFAR-10 at 16 x 16 pixels."
)
NAMES = {"vit": "ViT", "conv_stem": "ViT, convolutional stem", "resnet": "ResNet"}


def experiments(seed: int) -> dict[str, Experiment]:
    """The three networks."""
    return {
        "vit": vit("large", seed=seed),
        "conv_stem": conv_stem("medium", seed=seed),
        "resnet": resnet("medium", seed=seed),
    }


def contrasts(measured: Measured) -> list[Contrast]:
    """Whether each kind of convolution helps."""
    return [
        contrast("a convolutional stem helps the ViT", measured, "conv_stem", "vit"),
        contrast("the ResNet is better than the ViT", measured, "resnet", "vit"),
    ]


def chart(measured: Measured) -> Chart:
    """Accuracy of the three."""
    curves = (percent_curve(name, measured, [(index, key)]) for index, (key, name) in enumerate(NAMES.items()))
    return Chart(tuple(curves), "network", x_names=tuple(NAMES.values()))
