"""An explanation as a still figure, for papers: the picture, and each method's map for each class over it."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from PIL import Image

from vitrail import plug
from vitrail.errors import shown
from vitrail.inspection.explanation import METHODS, Explanation

CELL = 2.3  # inches
MAX_ROWS = 3
LONGEST = 480  # pixels of the picture's longer side
WIDEST = 3.0  # sides of a picture that is drawn in its own form
STRENGTH = 0.7


def draw(explanation: Explanation) -> Figure:
    """A row for each class, a column for each method."""
    methods = list(explanation.heat)
    rows = min(MAX_ROWS, len(explanation.classes))
    height, width = explanation.picture.shape[:2]
    form = min(WIDEST, max(1 / WIDEST, height / width))
    figure = Figure(figsize=(CELL * (1 + len(methods)), CELL * rows * form + 0.5), layout="constrained")
    axes = figure.subplots(rows, 1 + len(methods), squeeze=False)
    picture = Image.fromarray(explanation.picture)
    picture.thumbnail((LONGEST, LONGEST))
    for row, (label, odds) in enumerate(zip(explanation.labels[:rows], explanation.probabilities, strict=False)):
        titles = [f"{shown(label)}, {odds:.1%}", *(plug.load(METHODS, method).TITLE for method in methods)]
        for axis, title in zip(axes[row], titles, strict=True):
            axis.set_title(title, fontsize=9, parse_math=False)
            axis.imshow(picture, extent=(0, width, height, 0))
            axis.set_axis_off()
            _frame(axis, explanation)
        for axis, method in zip(axes[row, 1:], methods, strict=True):
            _lay_over(axis, explanation, explanation.heat[method][row])
    return figure


def _frame(axis: Any, explanation: Explanation) -> None:
    """A line around what the model sees."""
    height, width = explanation.picture.shape[:2]
    top, left, bottom, right = explanation.window
    place, size = (left * width, top * height), ((right - left) * width, (bottom - top) * height)
    axis.add_patch(Rectangle(place, *size, fill=False, edgecolor="white", linewidth=0.8))


def _lay_over(axis: Any, explanation: Explanation, heat: NDArray[np.float32]) -> None:
    """A map over the part of the picture that the model sees."""
    height, width = explanation.picture.shape[:2]
    top, left, bottom, right = explanation.window
    extent = (left * width, right * width, bottom * height, top * height)
    lay_map(axis, heat, extent)
    axis.set(xlim=(0, width), ylim=(height, 0))


def lay_map(axis: Any, heat: NDArray[np.float32], extent: tuple[float, float, float, float]) -> None:
    """A map over what is drawn already, of which more is seen where the map is low."""
    share = heat / max(float(heat.max()), 1e-30)
    axis.imshow(share, extent=extent, cmap="viridis", alpha=STRENGTH * (0.4 + 0.6 * share), interpolation="bilinear")
