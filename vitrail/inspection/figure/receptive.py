"""Convolutions against attention, measured: which pixels the centre feature depends on."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitrail.contract import Classifier
from vitrail.inspection.drawing import Drawing, require_sample
from vitrail.inspection.receptive import radius, receptive_fields
from vitrail.inspection.sample import Sample

TITLE = "Effective receptive field by depth"
DESCRIPTION = (
    "How strongly the centre feature depends on each pixel, after each stage of the model. "
    "Convolutions widen their receptive field step by step; attention can cover the whole image from block 1 on."
)
NUM_IMAGES = 16
MAX_MAPS = 5


def draw(model: Classifier, sample: Sample | None) -> Drawing:
    """Maps after a few stages, and the mean distance after each."""
    sample = require_sample(sample, "receptive fields")
    totals: dict[str, torch.Tensor] = {}
    num = 0
    for images in sample.batches(NUM_IMAGES):
        for batch in torch.split(images, 4):  # all stages keep their activations for the gradients
            for name, field in receptive_fields(model, batch):
                totals[name] = totals.get(name, torch.zeros_like(field)) + field.detach() * len(batch)
            num += len(batch)
    fields = {name: total / num for name, total in totals.items()}
    radii = {name: radius(field) for name, field in fields.items()}
    names = list(fields)
    num_maps = min(MAX_MAPS, len(names))
    selected = [names[round(place * (len(names) - 1) / (num_maps - 1))] for place in range(num_maps)]
    figure = Figure(figsize=(1.7 * len(selected) + 3.2, 2.3), layout="constrained")
    axes = figure.subplots(1, len(selected) + 1, width_ratios=[1] * len(selected) + [2])
    for axis, name in zip(axes, selected, strict=False):
        scaled = (fields[name] / fields[name].max()).pow(0.25)  # the fourth root: values span many orders of magnitude
        axis.imshow(scaled.cpu().numpy(), cmap="viridis", vmin=0, vmax=1)
        axis.set_xlabel(f"{name}, {radii[name]:.0f} px", fontsize=9)
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
    axes[-1].plot(range(len(names)), list(radii.values()), "o-", markersize=3)
    axes[-1].set(xlabel="depth", ylabel="mean distance (pixels)", ylim=(0, 1.08 * max(radii.values())))
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[-1].grid(alpha=0.3)
    return Drawing(figure, ("part", "mean_distance_pixels"), [(name, f"{value:.2f}") for name, value in radii.items()])
