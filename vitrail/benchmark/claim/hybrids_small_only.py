"""A convolutional stem helps small transformers, and large ones no longer."""

from __future__ import annotations

from vitrail.benchmark.experiment import Experiment
from vitrail.benchmark.networks import SIZES, hybrid, vit
from vitrail.benchmark.verdict import Chart, Contrast, Measured, contrast, percent_curve

DECK = "003"
CLAIM = "Hybrids of a ResNet and a transformer have an advantage only while the model is small."
PAPER = (
    "Hybrids slightly outperform ViT at small compute budgets; the difference vanishes for larger models (figure 5)."
)
EXPERIMENT = (
    "Three sizes of ViT, each with patches and with the feature map of a small ResNet as tokens; "
    "half a teraflop for every run, 10,000 images of CIFAR-10 at 16 x 16 pixels."
)


def experiments(seed: int) -> dict[str, Experiment]:
    """Both at three sizes."""
    return {
        f"{kind} {size}": make(size, seed=seed) for kind, make in (("vit", vit), ("hybrid", hybrid)) for size in SIZES
    }


def contrasts(measured: Measured) -> list[Contrast]:
    """Whether it helps the smallest, and whether it helps the largest less."""
    small, large = SIZES[0], SIZES[-1]
    gains = [
        [seed[f"hybrid {size}"]["accuracy"] - seed[f"vit {size}"]["accuracy"] for size in (small, large)]
        for seed in measured
    ]
    return [
        contrast(f"the hybrid is better at the {small} size", measured, f"hybrid {small}", f"vit {small}"),
        Contrast(f"its advantage is smaller at the {large} size", tuple(before - after for before, after in gains)),
    ]


def chart(measured: Measured) -> Chart:
    """Accuracy by size."""
    curves = (
        percent_curve(name, measured, [(index, f"{kind} {size}") for index, size in enumerate(SIZES)])
        for kind, name in (("vit", "ViT"), ("hybrid", "hybrid"))
    )
    return Chart(tuple(curves), "size of the transformer", x_names=SIZES)
