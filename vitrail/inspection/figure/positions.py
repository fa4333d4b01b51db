"""Figure 7, centre, of arXiv 2010.11929: how alike positions are."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from vitrail.inspection.drawn import Drawn
from vitrail.inspection.embedding import position_similarity
from vitrail.inspection.sample import Sample

TITLE = "Similarity of positions"
SAYS = (
    "Each tile belongs to one patch and shows the cosine between its position and every other. "
    "Closer patches have more alike positions, and rows and columns appear, although nobody told the model of the grid."
)
NEEDS_PICTURES = 0
MOST = 14  # tiles a side


def draw(model: Any, sample: Sample | None) -> Drawn:
    """A tile for each patch, or for every second or third of a large grid."""
    similarity = position_similarity(model).numpy()
    grid = similarity.shape[:2]
    step = -(-max(grid) // MOST)
    rows, columns = (range(0, side, step) for side in grid)
    figure = Figure(figsize=(6.4, 6.0 * len(rows) / len(columns)), layout="constrained")
    axes = figure.subplots(len(rows), len(columns), squeeze=False)
    shown = None
    for row, line in zip(rows, axes, strict=True):
        for column, axis in zip(columns, line, strict=True):
            shown = axis.imshow(similarity[row, column], vmin=-1, vmax=1, cmap="cividis", interpolation="nearest")
            axis.set_axis_off()
    figure.colorbar(shown, ax=axes, label="cosine", shrink=0.7)
    numbers = [(*place, f"{similarity[place]:.4f}") for place in np.ndindex(*similarity.shape)]
    return Drawn(figure, ("row", "column", "other_row", "other_column", "cosine"), numbers)
