"""A small model cannot use more data."""

from __future__ import annotations

from vitrail.benchmark.experiment import Experiment
from vitrail.benchmark.networks import Size, vit
from vitrail.benchmark.verdict import Chart, Contrast, Measured, percent_curve

DECK = "003"
CLAIM = "Small models stop improving as data grows; larger ones go on."
PAPER = "In scaling laws of ViT (arXiv 2106.04560), small models saturate and do not benefit from more data or compute."
EXPERIMENT = (
    "ViTs of 0.01 and 0.1 million parameters on 500 to 50,000 images of CIFAR-10 at 16 x 16 pixels; "
    "both see 98,000 images, about a teraflop for the larger one."
)
NUMBERS = (500, 2000, 10_000, 50_000)
SIZES: tuple[Size, ...] = ("mini", "medium")
NUM_SEEN = 98_000


def experiments(seed: int) -> dict[str, Experiment]:
    """Both sizes on every number of images."""
    return {
        f"{size} {num}": vit(size, num_images=num, num_seen=NUM_SEEN, seed=seed) for size in SIZES for num in NUMBERS
    }


def contrasts(measured: Measured) -> list[Contrast]:
    """Whether the larger model gains more from the last step of data."""

    def gain(size: str, before: int, after: int) -> list[float]:
        return [seed[f"{size} {after}"]["accuracy"] - seed[f"{size} {before}"]["accuracy"] for seed in measured]

    return [
        Contrast(
            f"from {before:,} to {after:,} images the larger model gains more",
            tuple(
                large - small
                for large, small in zip(gain("medium", before, after), gain("mini", before, after), strict=True)
            ),
        )
        for before, after in ((NUMBERS[0], NUMBERS[-1]), NUMBERS[-2:])
    ]


def chart(measured: Measured) -> Chart:
    """Accuracy by the number of images."""
    names = {"mini": "0.01 million parameters", "medium": "0.1 million parameters"}
    curves = (
        percent_curve(name, measured, [(num, f"{size} {num}") for num in NUMBERS]) for size, name in names.items()
    )
    return Chart(tuple(curves), "training images", log_x=True)
