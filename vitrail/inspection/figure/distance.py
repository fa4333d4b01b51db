"""Figure 7, right, of arXiv 2010.11929: the attention distance of each head."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitrail.contract import Classifier
from vitrail.inspection.distance import measure_heads
from vitrail.inspection.drawing import Drawing, require_sample
from vitrail.inspection.sample import Sample
from vitrail.inspection.trace import require_attention

TITLE = "Attention distance by depth"
DESCRIPTION = (
    "Each point is a head: the mean distance in pixels between a patch and the patches it attends to. "
    "In large trained models some heads attend globally from the first block on while others stay local; in the last "
    "blocks all attend globally."
)


def draw(model: Classifier, sample: Sample | None) -> Drawing:
    """The attention distance and entropy of every head, by block."""
    model = require_attention(model, "the figure receptive")
    sample = require_sample(sample, "attention distance")
    stats = measure_heads(model, sample.batches())
    blocks = np.arange(1, len(stats.distance) + 1)
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    for axis, values, name in zip(
        figure.subplots(1, 2), stats, ("mean attention distance (pixels)", "attention entropy (bits)"), strict=True
    ):
        for head in range(values.shape[1]):
            axis.plot(blocks, values[:, head], "o", markersize=4, alpha=0.75, color=f"C{head % 10}")
        axis.plot(blocks, values.mean(dim=1), "-", color="0.5", linewidth=1)
        axis.set(xlabel="block", ylabel=name, ylim=(0, 1.08 * float(values.max()) or 1.0))
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.grid(alpha=0.3)
    rows = [
        (block + 1, head + 1, f"{stats.distance[block, head]:.3f}", f"{stats.entropy[block, head]:.4f}", len(sample))
        for block, head in np.ndindex(*stats.distance.shape)
    ]
    return Drawing(figure, ("block", "head", "distance_pixels", "entropy_bits", "images"), rows)
