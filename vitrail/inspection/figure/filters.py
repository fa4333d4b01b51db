"""Figure 7, left, of arXiv 2010.11929: the filters of the patch embedding."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from vitrail.contract import Classifier
from vitrail.inspection.drawing import Drawing
from vitrail.inspection.embedding import filters, mosaic
from vitrail.inspection.sample import Sample

TITLE = "Filters of the patch embedding"
DESCRIPTION = (
    "The principal components of the linear projection from patch to token, shown as RGB filters. "
    "A trained model has learned stripes and colours, a basis for what occurs within a patch; an untrained one shows "
    "noise."
)
COLUMNS = 7


def draw(model: Classifier, sample: Sample | None) -> Drawing:  # noqa: ARG001  # the figures' common signature
    """The first 28 components; a row of numbers for each."""
    tiles = filters(model, 4 * COLUMNS).numpy()
    figure = Figure(figsize=(COLUMNS * 0.8, -(-len(tiles) // COLUMNS) * 0.8), layout="constrained")
    axis = figure.subplots()
    image = mosaic(tiles if tiles.shape[-1] == 3 else tiles[..., 0], COLUMNS)
    axis.imshow(np.nan_to_num(image, nan=1.0), cmap="gray", interpolation="nearest")
    axis.set_axis_off()
    columns = [f"y{row}_x{column}_c{channel}" for row, column, channel in np.ndindex(*tiles.shape[1:])]
    rows = [(number, *(f"{value:.4f}" for value in tile.ravel())) for number, tile in enumerate(tiles, start=1)]
    return Drawing(figure, ("component", *columns), rows)
