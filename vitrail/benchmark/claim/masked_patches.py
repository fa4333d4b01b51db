"""Predicting hidden patches of images without labels prepares a model for few labels."""

from __future__ import annotations

from vitrail.benchmark.experiment import Experiment
from vitrail.benchmark.guided import Pretrained
from vitrail.benchmark.networks import vit
from vitrail.benchmark.verdict import Chart, Contrast, Measured, contrast, percent_curve

DECK = "004"
CLAIM = "Masked patch prediction on images without labels improves a Vision Transformer over training from scratch."
PAPER = (
    "ViT-B/16, pretrained on masked patches of JFT-300M, reaches 79.9 % on ImageNet: 2 points above training from "
    "scratch, 4 below supervised pretraining (section 4.6)."
)
EXPERIMENT = (
    "A ViT of 0.1 million parameters with 64 tokens, 1,000 labelled images of CIFAR-10 at 16 x 16 pixels and 10,000 "
    "without labels; the mean colour of hidden patches is predicted. Pretraining in addition to the same training with "
    "labels, and in place of half of it. Longer comparisons, with all targets, are in docs/few-labels.md."
)
NUM_IMAGES, NUM_UNLABELLED, NUM_SEEN, PATCH = 1000, 10_000, 50_000, 2
NAMES = {"scratch": "from scratch", "half": "half of it pretraining", "more": "pretraining in addition"}


def experiments(seed: int) -> dict[str, Experiment]:
    """From scratch, pretrained at equal compute, and pretrained in addition."""
    scratch = vit("medium", patch=PATCH, num_images=NUM_IMAGES, num_seen=NUM_SEEN, seed=seed)
    half = vit("medium", patch=PATCH, num_images=NUM_IMAGES, num_seen=NUM_SEEN // 2, seed=seed)
    return {
        "scratch": scratch,
        "half": Pretrained(half, "mean_colour", NUM_UNLABELLED, NUM_SEEN // 2),
        "more": Pretrained(scratch, "mean_colour", NUM_UNLABELLED, NUM_SEEN),
    }


def contrasts(measured: Measured) -> list[Contrast]:
    """Whether it helps in addition, and at equal compute."""
    return [
        contrast("pretraining in addition helps", measured, "more", "scratch"),
        contrast("pretraining helps at equal compute", measured, "half", "scratch"),
    ]


def chart(measured: Measured) -> Chart:
    """Accuracy of the three."""
    curves = (percent_curve(name, measured, [(index, key)]) for index, (key, name) in enumerate(NAMES.items()))
    return Chart(tuple(curves), "training", x_names=tuple(NAMES.values()))
