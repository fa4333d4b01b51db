"""The decks' picture of convolutions against attention, measured: what a feature in the middle depends on."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitrail.inspection.drawing import Drawing, require_sample
from vitrail.inspection.receptive import radius, receptive_fields
from vitrail.inspection.sample import Sample

TITLE = "Effective receptive field over depth"
SAYS = (
    "How much the feature in the middle changes with each pixel, after each part of the model. "
    "Convolutions widen their view step by step; attention may see the whole picture from the first block on."
)
NUM_IMAGES = 16
MOST = 5  # maps


def draw(model: Any, sample: Sample | None) -> Drawing:
    """Maps after a few parts, and the mean distance after all of them."""
    sample = require_sample(sample, "receptive fields")
    totals: dict[str, torch.Tensor] = {}
    num = 0
    for images in sample.batches(NUM_IMAGES):
        for part in torch.split(images, 4):  # every part of the model keeps its activations
            for name, field in receptive_fields(model, part):
                totals[name] = totals.get(name, torch.zeros_like(field)) + field.detach() * len(part)
            num += len(part)
    fields = {name: total / num for name, total in totals.items()}
    radii = {name: radius(field) for name, field in fields.items()}
    names = list(fields)
    chosen = [
        names[round(place * (len(names) - 1) / (min(MOST, len(names)) - 1))] for place in range(min(MOST, len(names)))
    ]
    figure = Figure(figsize=(1.7 * len(chosen) + 3.2, 2.3), layout="constrained")
    axes = figure.subplots(1, len(chosen) + 1, width_ratios=[1] * len(chosen) + [2])
    for axis, name in zip(axes, chosen, strict=False):
        shares = (fields[name] / fields[name].max()).pow(0.25)  # by a root: they span many orders of magnitude
        axis.imshow(shares.cpu().numpy(), cmap="viridis", vmin=0, vmax=1)
        axis.set_xlabel(f"{name}, {radii[name]:.0f} px", fontsize=9)
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
    axes[-1].plot(range(len(names)), list(radii.values()), "o-", markersize=3)
    axes[-1].set(xlabel="depth", ylabel="mean distance (pixels)", ylim=(0, 1.08 * max(radii.values())))
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[-1].grid(alpha=0.3)
    return Drawing(figure, ("part", "mean_distance_pixels"), [(name, f"{value:.2f}") for name, value in radii.items()])
