"""Attention treats its tokens as a set: without positions, their order does not matter."""

from __future__ import annotations

from vitrail.benchmark.experiment import Experiment
from vitrail.benchmark.networks import vit
from vitrail.benchmark.verdict import Chart, Contrast, Curve, Measured, contrast

DECK = "003"
CLAIM = "Attention is an operation on sets: the order of the tokens is known only through position embeddings."
PAPER = (
    "ViT-B/16 loses 3 points of 5-shot ImageNet accuracy without position embeddings (61.4 against 64.2 %, table 8)."
)
EXPERIMENT = (
    "A ViT with learned positions and one without, tested on images as they are and with their patches in a random "
    "order; half a teraflop for every run, 10,000 images of CIFAR-10 at 16 x 16 pixels."
)
SAME = 0.999  # of all answers; the sum of floats depends on their order


def experiments(seed: int) -> dict[str, Experiment]:
    """With positions and without."""
    return {
        "positions": vit("medium", seed=seed, inspect=("permuted",)),
        "none": vit("medium", "position=none", seed=seed, inspect=("permuted",)),
    }


def contrasts(measured: Measured) -> list[Contrast]:
    """Whether order matters with positions only, and whether positions help."""
    return [
        Contrast(
            f"without positions at least {100 * SAME:g} % of the answers stay when patches are permuted",
            tuple(seed["none"]["unchanged"] - SAME for seed in measured),
        ),
        Contrast(
            "with positions, permuted patches cost accuracy",
            tuple(seed["positions"]["accuracy"] - seed["positions"]["permuted_accuracy"] for seed in measured),
        ),
        contrast("positions help", measured, "positions", "none"),
    ]


def chart(measured: Measured) -> Chart:
    """Accuracy on images as they are and with permuted patches."""
    names = {"positions": "with positions", "none": "without positions"}
    curves = tuple(
        Curve(
            name,
            tuple(
                (index, tuple(100 * seed[key][field] for seed in measured))
                for index, field in enumerate(("accuracy", "permuted_accuracy"))
            ),
        )
        for key, name in names.items()
    )
    return Chart(curves, "patches of the test images", x_names=("in order", "permuted"))
