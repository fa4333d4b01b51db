"""Figure 7, right, of arXiv 2010.11929: how far each head looks."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitrail.inspection.distance import reach
from vitrail.inspection.drawing import Drawing, require_sample
from vitrail.inspection.sample import Sample
from vitrail.inspection.trace import require_attention

TITLE = "Attention distance over depth"
SAYS = (
    "Each point is a head: the mean distance, in pixels, between a patch and what it looks at. "
    "In large trained models some heads look far from the first block on, others stay near, and in the last blocks all "
    "look far."
)


def draw(model: Any, sample: Sample | None) -> Drawing:
    """Distance, and entropy beside it, of every head over the blocks."""
    require_attention(model, "the figure receptive")
    sample = require_sample(sample, "attention distance")
    found = reach(model, sample.batches())
    blocks = np.arange(1, len(found.distance) + 1)
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    for axis, values, name in zip(
        figure.subplots(1, 2), found, ("mean attention distance (pixels)", "entropy of attention (bits)"), strict=True
    ):
        for head in range(values.shape[1]):
            axis.plot(blocks, values[:, head], "o", markersize=4, alpha=0.75, color=f"C{head % 10}")
        axis.plot(blocks, values.mean(dim=1), "-", color="0.5", linewidth=1)
        axis.set(xlabel="block", ylabel=name, ylim=(0, 1.08 * float(values.max()) or 1.0))
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.grid(alpha=0.3)
    numbers = [
        (block + 1, head + 1, f"{found.distance[block, head]:.3f}", f"{found.entropy[block, head]:.4f}", len(sample))
        for block, head in np.ndindex(*found.distance.shape)
    ]
    return Drawing(figure, ("block", "head", "distance_pixels", "entropy_bits", "pictures"), numbers)
