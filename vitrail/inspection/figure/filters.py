"""Figure 7, left, of arXiv 2010.11929: the first filters."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from vitrail.inspection.drawn import Drawn
from vitrail.inspection.embedding import filters
from vitrail.inspection.sample import Sample

TITLE = "Filters of the patch embedding"
SAYS = (
    "The principal components of the matrix that turns a patch into a token, as colours. "
    "A trained model has learned plausible functions for the fine structure within a patch; an untrained one shows noise."
)
NEEDS_PICTURES = 0
COLUMNS = 7


def draw(model: Any, sample: Sample | None) -> Drawn:
    """The first 28 components."""
    tiles = filters(model, 4 * COLUMNS).numpy()
    rows = -(-len(tiles) // COLUMNS)
    figure = Figure(figsize=(COLUMNS * 0.7, rows * 0.7), layout="constrained")
    for place, axis in enumerate(figure.subplots(rows, COLUMNS, squeeze=False).flat):
        axis.set_axis_off()
        if place < len(tiles):
            axis.imshow(tiles[place] if tiles.shape[-1] == 3 else tiles[place][..., 0], interpolation="nearest")
    titles = ("component", "row", "column", "channel", "value")
    numbers = [
        (component, row, column, channel, f"{tiles[component, row, column, channel]:.4f}")
        for component in range(len(tiles))
        for row in range(tiles.shape[1])
        for column in range(tiles.shape[2])
        for channel in range(tiles.shape[3])
    ]
    return Drawn(figure, titles, numbers)
