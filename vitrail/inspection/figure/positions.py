"""Figure 7, centre, of arXiv 2010.11929: how alike positions are."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from vitrail.inspection.drawing import Drawing
from vitrail.inspection.embedding import mosaic, position_similarity
from vitrail.inspection.sample import Sample

TITLE = "Similarity of positions"
SAYS = (
    "Each tile belongs to one patch and shows the cosine between its position and every other. "
    "In large trained models closer patches have more alike positions, and rows and columns appear, although nobody "
    "told the model of the grid."
)
MOST = 14  # tiles a side


def draw(model: Any, sample: Sample | None) -> Drawing:  # noqa: ARG001  # the figures' common signature
    """A tile for each patch, or for every second or third of a large grid; a line of numbers for each patch."""
    similarity = position_similarity(model).numpy()
    grid = similarity.shape[:2]
    step = -(-max(grid) // MOST)
    shown = similarity[::step, ::step]
    figure = Figure(figsize=(6.8, 6.0 * grid[0] / grid[1]), layout="constrained")
    axis = figure.subplots()
    tiles = mosaic(shown.reshape(-1, *grid), shown.shape[1])
    mapped = axis.imshow(tiles, vmin=-1, vmax=1, cmap="cividis", interpolation="nearest")
    for direction, num, side in (("x", shown.shape[1], grid[1]), ("y", shown.shape[0], grid[0])):
        places = [number * (side + 1) + (side - 1) / 2 for number in range(num)]
        axis.set(
            **{f"{direction}ticks": places, f"{direction}ticklabels": [1 + step * number for number in range(num)]}
        )
    axis.set(xlabel="column of the patch", ylabel="row of the patch")
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    figure.colorbar(mapped, ax=axis, label="cosine", shrink=0.8)
    names = [f"y{row}_x{column}" for row, column in np.ndindex(*grid)]
    rows = [
        (name, *(f"{value:.4f}" for value in similarity[place].ravel()))
        for name, place in zip(names, np.ndindex(*grid), strict=True)
    ]
    return Drawing(figure, ("patch", *names), rows)
