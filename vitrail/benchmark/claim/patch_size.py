"""Smaller patches are better, and dearer."""

from __future__ import annotations

from vitrail.benchmark.experiment import Experiment
from vitrail.benchmark.networks import vit
from vitrail.benchmark.verdict import Chart, Contrast, Measured, contrast, percent_curve

DECK = "002"
CLAIM = "16 x 16 words: with smaller patches a model is more accurate and costs more."
PAPER = "ViT-B/16 is 4 points above ViT-B/32 on ImageNet when both are pretrained on JFT-300M, at four times the FLOPs."
EXPERIMENT = (
    "Patches of 2, 4 and 8 pixels, 64, 16 and 4 tokens, on 10,000 images of CIFAR-10 at 16 x 16 pixels: with the same "
    "number of images seen (5 epochs), and with the same compute (half a teraflop)."
)
PATCHES = (2, 4, 8)
NUM_SEEN = 49_000


def experiments(seed: int) -> dict[str, Experiment]:
    """Three patch sizes at equal epochs and at equal compute."""
    return {
        f"{what} {patch}": vit("medium", patch=patch, num_seen=num_seen, seed=seed)
        for what, num_seen in (("epochs", NUM_SEEN), ("compute", None))
        for patch in PATCHES
    }


def contrasts(measured: Measured) -> list[Contrast]:
    """Whether smaller is better at equal epochs, and still at equal compute."""
    return [
        contrast("at equal epochs, 4 pixels are better than 8", measured, "epochs 4", "epochs 8"),
        contrast("at equal epochs, 2 pixels are better than 4", measured, "epochs 2", "epochs 4"),
        Contrast(
            "a model with patches of 2 pixels takes more FLOPs than one of 4",
            tuple(seed["epochs 2"]["mflops"] - seed["epochs 4"]["mflops"] for seed in measured),
            "MFLOPs per image",
        ),
    ]


def chart(measured: Measured) -> Chart:
    """Accuracy by patch size."""
    curves = (
        percent_curve(name, measured, [(index, f"{what} {patch}") for index, patch in enumerate(PATCHES)])
        for what, name in (("epochs", "equal epochs"), ("compute", "equal compute"))
    )
    return Chart(tuple(curves), "side of a patch (pixels)", x_names=tuple(map(str, PATCHES)))
