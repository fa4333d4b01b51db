"""An explanation as a still figure, for papers: the picture, and each method's map for each class over it."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from vitrail import plug
from vitrail.inspection.explanation import METHODS, Explanation

CELL = 2.3  # inches
MAX_ROWS = 3
STRENGTH = 0.55
COLOURS = "viridis"


def draw(explanation: Explanation) -> Figure:
    """A row for each class, a column for each method."""
    methods = list(explanation.heat)
    rows = min(MAX_ROWS, len(explanation.classes))
    height, width = explanation.picture.shape[:2]
    figure = Figure(figsize=(CELL * (1 + len(methods)), CELL * rows * height / width + 0.5), layout="constrained")
    axes = figure.subplots(rows, 1 + len(methods), squeeze=False)
    for row in range(rows):
        label, odds = explanation.labels[row], explanation.probabilities[row]
        show_picture(axes[row, 0], explanation)
        axes[row, 0].set_title(f"{label}, {odds:.1%}", fontsize=9)
        for column, method in enumerate(methods, start=1):
            show_picture(axes[row, column], explanation)
            lay_over(axes[row, column], explanation, explanation.heat[method][row])
            axes[row, column].set_title(plug.load(METHODS, method).TITLE, fontsize=9)
    return figure


def show_picture(axis: Any, explanation: Explanation) -> None:
    """The whole picture, and in it a frame around what the model sees."""
    height, width = explanation.picture.shape[:2]
    axis.imshow(explanation.picture, extent=(0, width, height, 0))
    axis.set_axis_off()
    top, left, bottom, right = explanation.window
    if (top, left, bottom, right) != (0.0, 0.0, 1.0, 1.0):
        from matplotlib.patches import Rectangle

        place, size = (left * width, top * height), ((right - left) * width, (bottom - top) * height)
        axis.add_patch(Rectangle(place, *size, fill=False, edgecolor="white", linewidth=0.8))


def lay_over(axis: Any, explanation: Explanation, heat: np.ndarray) -> None:
    """A map over the part of the picture that the model sees."""
    height, width = explanation.picture.shape[:2]
    top, left, bottom, right = explanation.window
    extent = (left * width, right * width, bottom * height, top * height)
    axis.imshow(heat, extent=extent, cmap=COLOURS, alpha=STRENGTH, interpolation="bilinear")
    axis.set(xlim=(0, width), ylim=(height, 0))
