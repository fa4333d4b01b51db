"""The first layers attend partly locally, the last ones globally."""

from __future__ import annotations

from statistics import fmean, pstdev

from vitrail.benchmark.experiment import Experiment
from vitrail.benchmark.networks import vit
from vitrail.benchmark.pretrained import PretrainedDistance
from vitrail.benchmark.verdict import Chart, Contrast, Curve, Measured

DECK = "003"
CLAIM = "In early layers some heads attend locally and others globally; in deep layers all attend globally."
PAPER = "Attention distance grows with depth, and heads of the first layers differ widely (figure 7, right, ViT-L/16)."
EXPERIMENT = (
    "Attention distance of every head as a fraction of the image's side: DeiT-Ti on 24 images of Oxford Pets, "
    "other images for each seed; and a ViT with 64 tokens trained here with half a teraflop."
)


def experiments(seed: int) -> dict[str, Experiment]:
    """The pretrained model, and one of ours."""
    ours = vit("small", patch=2, seed=seed, inspect=("distance",))
    return {"deit": PretrainedDistance(seed=seed), "ours": ours}


def contrasts(measured: Measured) -> list[Contrast]:
    """Whether distance grows, and whether heads become alike."""
    found = []
    for key, name in (("deit", "DeiT-Ti"), ("ours", "our ViT")):
        heads = [seed[key]["distance"] for seed in measured]
        third = max(1, len(heads[0]) // 3)
        means = [(fmean(map(fmean, each[:third])), fmean(map(fmean, each[-third:]))) for each in heads]
        grows = tuple(last - first for first, last in means)
        found.append(
            Contrast(f"the last third of {name}'s blocks attends further than the first", grows, "of the side")
        )
        if key == "deit":
            spreads = tuple(fmean(map(pstdev, each[:third])) - fmean(map(pstdev, each[-third:])) for each in heads)
            found.append(Contrast("its heads differ more in the first third", spreads, "of the side"))
    return found


def chart(measured: Measured) -> Chart:
    """Mean distance by relative depth."""
    curves = []
    for key, name in (("deit", "DeiT-Ti"), ("ours", "our ViT")):
        heads = [seed[key]["distance"] for seed in measured]
        depth = len(heads[0])
        curves.append(
            Curve(
                name,
                tuple(((block + 1) / depth, tuple(fmean(each[block]) for each in heads)) for block in range(depth)),
            )
        )
    return Chart(tuple(curves), "depth, relative", y_label="attention distance (of the image's side)")
