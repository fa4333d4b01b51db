"""Sharpness-aware minimisation helps a Vision Transformer on small data."""

from __future__ import annotations

from vitrail.benchmark.experiment import Experiment
from vitrail.benchmark.networks import vit
from vitrail.benchmark.verdict import Chart, Contrast, Measured, contrast, percent_curve

DECK = "003"
CLAIM = "With SAM, a Vision Transformer does well on small data without pretraining or strong augmentation."
PAPER = "SAM raises ViT-B/16 on ImageNet from 74.6 to 79.9 %, without pretraining (arXiv 2106.01548)."
EXPERIMENT = (
    "A ViT of 0.1 million parameters on 2,000 images of CIFAR-10 at 16 x 16 pixels, without SAM and with it (radius "
    "0.05): for the same number of steps, and for the same compute, half as many steps. SAM's second pass is counted."
)
NUM_IMAGES, NUM_SEEN = 2000, 98_000
SAM = ("sam=0.05",)


def experiments(seed: int) -> dict[str, Experiment]:
    """Without, with at equal steps, and with at equal compute."""
    return {
        "plain": vit("medium", num_images=NUM_IMAGES, num_seen=NUM_SEEN, seed=seed),
        "steps": vit("medium", num_images=NUM_IMAGES, num_seen=NUM_SEEN, settings=SAM, seed=seed),
        "compute": vit("medium", num_images=NUM_IMAGES, num_seen=NUM_SEEN // 2, settings=SAM, seed=seed),
    }


def contrasts(measured: Measured) -> list[Contrast]:
    """Whether it helps at equal steps, and at equal compute."""
    return [
        contrast("SAM helps at equal steps", measured, "steps", "plain"),
        contrast("SAM helps at equal compute", measured, "compute", "plain"),
    ]


def chart(measured: Measured) -> Chart:
    """Accuracy of the three."""
    names = {"plain": "without", "steps": "SAM, equal steps", "compute": "SAM, equal compute"}
    curves = (percent_curve(name, measured, [(index, key)]) for index, (key, name) in enumerate(names.items()))
    return Chart(tuple(curves), "training", x_names=tuple(names.values()))
