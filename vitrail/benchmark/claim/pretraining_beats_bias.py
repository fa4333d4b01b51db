"""Pretraining on much data is worth more than the inductive bias of convolutions."""

from __future__ import annotations

from vitrail.benchmark.experiment import Experiment
from vitrail.benchmark.networks import resnet
from vitrail.benchmark.pretrained import SmallImageProbe
from vitrail.benchmark.verdict import Chart, Contrast, Measured, contrast, percent_curve

DECK = "004"
CLAIM = "Large-scale training trumps inductive bias: a pretrained Vision Transformer is better than a ResNet."
PAPER = "Pretrained on JFT-300M, ViT-H/14 is above BiT-L, a ResNet152x4, on every data set of the results table."
EXPERIMENT = (
    "DeiT-Ti, pretrained on 1.3 million images of ImageNet and frozen, with a linear probe, against a ResNet of BiT's "
    "units trained from scratch with 1 teraflop: 500 to 10,000 images of CIFAR-10, reduced to 16 x 16 pixels for both "
    "and enlarged to 112 for DeiT-Ti. The ResNet is not pretrained: there are no such weights here."
)
NUMBERS = (500, 2000, 10_000)
TERAFLOPS = 1.0


def experiments(seed: int) -> dict[str, Experiment]:
    """Both on every number of images."""
    probes = {f"deit {num}": SmallImageProbe(num, seed) for num in NUMBERS}
    return {
        **probes,
        **{f"resnet {num}": resnet("medium", num_images=num, teraflops=TERAFLOPS, seed=seed) for num in NUMBERS},
    }


def contrasts(measured: Measured) -> list[Contrast]:
    """Whether the pretrained ViT is better, from few images to many."""
    return [
        contrast(f"with {num:,} images the pretrained ViT is better", measured, f"deit {num}", f"resnet {num}")
        for num in NUMBERS
    ]


def chart(measured: Measured) -> Chart:
    """Accuracy by the number of images."""
    names = {"deit": "DeiT-Ti, pretrained, linear probe", "resnet": "ResNet from scratch"}
    curves = (
        percent_curve(name, measured, [(num, f"{kind} {num}") for num in NUMBERS]) for kind, name in names.items()
    )
    return Chart(tuple(curves), "training images", log_x=True)
