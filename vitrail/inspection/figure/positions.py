"""Figure 7, centre, of arXiv 2010.11929: the similarity of position embeddings."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from vitrail.contract import Classifier
from vitrail.inspection.drawing import Drawing
from vitrail.inspection.embedding import mosaic, position_similarity
from vitrail.inspection.sample import Sample

TITLE = "Similarity of position embeddings"
DESCRIPTION = (
    "Each tile shows the cosine similarity between the position embedding of one patch and all others. "
    "In large trained models closer patches have more similar embeddings, and a row-column structure appears, learned "
    "from data alone."
)
MAX_TILES = 14  # per side


def draw(model: Classifier, sample: Sample | None) -> Drawing:  # noqa: ARG001  # the figures' common signature
    """A tile for each patch, or for every second or third one of a large grid; a row of numbers for each patch."""
    similarity = position_similarity(model).numpy()
    grid = similarity.shape[:2]
    step = -(-max(grid) // MAX_TILES)
    selected = similarity[::step, ::step]
    figure = Figure(figsize=(6.8, 6.0 * grid[0] / grid[1]), layout="constrained")
    axis = figure.subplots()
    tiles = mosaic(selected.reshape(-1, *grid), selected.shape[1])
    mapped = axis.imshow(tiles, vmin=-1, vmax=1, cmap="cividis", interpolation="nearest")
    for direction, num, side in (("x", selected.shape[1], grid[1]), ("y", selected.shape[0], grid[0])):
        places = [number * (side + 1) + (side - 1) / 2 for number in range(num)]
        axis.set(
            **{f"{direction}ticks": places, f"{direction}ticklabels": [1 + step * number for number in range(num)]}
        )
    axis.set(xlabel="patch column", ylabel="patch row")
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    figure.colorbar(mapped, ax=axis, label="cosine similarity", shrink=0.8)
    names = [f"y{row}_x{column}" for row, column in np.ndindex(*grid)]
    rows = [
        (name, *(f"{value:.4f}" for value in similarity[place].ravel()))
        for name, place in zip(names, np.ndindex(*grid), strict=True)
    ]
    return Drawing(figure, ("patch", *names), rows)
