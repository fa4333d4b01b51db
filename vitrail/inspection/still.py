"""An explanation as a static figure for papers: the image and each method's heatmap for each class."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from PIL import Image

from vitrail import plug
from vitrail.errors import printable
from vitrail.inspection.explanation import METHODS, Explanation

PANEL = 2.3  # inches
MAX_ROWS = 3
MAX_SIDE = 480  # pixels
MAX_ASPECT = 3.0  # of a panel; more elongated images are squeezed
OPACITY = 0.7


def draw(explanation: Explanation) -> Figure:
    """A row per class, a column per method."""
    methods = list(explanation.heatmaps)
    rows = min(MAX_ROWS, len(explanation.classes))
    height, width = explanation.image.shape[:2]
    aspect = min(MAX_ASPECT, max(1 / MAX_ASPECT, height / width))
    figure = Figure(figsize=(PANEL * (1 + len(methods)), PANEL * rows * aspect + 0.5), layout="constrained")
    axes = figure.subplots(rows, 1 + len(methods), squeeze=False)
    image = Image.fromarray(explanation.image)
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    for row, (label, probability) in enumerate(zip(explanation.labels[:rows], explanation.probabilities, strict=False)):
        titles = [
            f"{printable(label)}, {explanation.score_text(probability)}",
            *(plug.load(METHODS, method).TITLE for method in methods),
        ]
        for axis, title in zip(axes[row], titles, strict=True):
            axis.set_title(title, fontsize=9, parse_math=False)
            axis.imshow(image, extent=(0, width, height, 0))
            axis.set_axis_off()
            _draw_frame(axis, explanation)
        for axis, method in zip(axes[row, 1:], methods, strict=True):
            _draw_in_frame(axis, explanation, explanation.heatmaps[method][row])
    return figure


def _draw_frame(axis: Any, explanation: Explanation) -> None:
    """Outline the part of the image that the model sees."""
    height, width = explanation.image.shape[:2]
    top, left, bottom, right = explanation.window
    corner, size = (left * width, top * height), ((right - left) * width, (bottom - top) * height)
    axis.add_patch(Rectangle(corner, *size, fill=False, edgecolor="white", linewidth=0.8))


def _draw_in_frame(axis: Any, explanation: Explanation, heatmap: NDArray[np.float32]) -> None:
    """Draw a heatmap over the part of the image that the model sees."""
    height, width = explanation.image.shape[:2]
    top, left, bottom, right = explanation.window
    extent = (left * width, right * width, bottom * height, top * height)
    draw_heatmap(axis, heatmap, extent)
    axis.set(xlim=(0, width), ylim=(height, 0))


def draw_heatmap(
    axis: Any, heatmap: NDArray[np.float32], extent: tuple[float, float, float, float], *, peak: float | None = None
) -> None:
    """Draw a heatmap over what the axis shows, more transparent where its values are low compared with the peak."""
    scaled = heatmap / max(float(heatmap.max()) if peak is None else peak, 1e-30)
    alpha = OPACITY * (0.4 + 0.6 * scaled)
    axis.imshow(
        scaled,
        extent=extent,
        cmap="viridis",
        vmin=0.0 if peak else None,
        vmax=peak,
        alpha=alpha,
        interpolation="bilinear",
    )
