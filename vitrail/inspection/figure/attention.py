"""Figure 6 of arXiv 2010.11929: what the output looks at in the picture."""

from __future__ import annotations

from textwrap import fill, shorten
from typing import Any

from matplotlib.figure import Figure

from vitrail.errors import shown
from vitrail.inspection.drawing import Drawing, require_sample
from vitrail.inspection.explanation import explain
from vitrail.inspection.sample import Sample
from vitrail.inspection.still import lay_map
from vitrail.inspection.trace import require_attention

TITLE = "Attention from the output to the picture"
SAYS = (
    "Attention, followed back through all blocks (rollout), and what of it spoke for the likeliest class (relevance). "
    "A good classifier looks at what makes the class, not at what happens to stand beside it."
)
NUM_IMAGES = 4
METHODS = ("rollout", "relevance")


def draw(model: Any, sample: Sample | None) -> Drawing:
    """A column for each of a few pictures, cut to what the model sees."""
    require_attention(model, "vitrail explain --method gradcam")
    sample = require_sample(sample, "attention maps")
    num = min(NUM_IMAGES, len(sample))
    figure = Figure(figsize=(1.7 * num, 1.7 * (1 + len(METHODS)) + 0.3), layout="constrained")
    axes = figure.subplots(1 + len(METHODS), num, squeeze=False)
    numbers: list[tuple[object, ...]] = []
    for column in range(num):
        found = explain(model, sample.source.content(column), methods=METHODS, top=1)
        seen = model.preprocess.pixels(found.picture)
        extent = (0, seen.shape[1], seen.shape[0], 0)
        axes[0, column].set_title(
            f"{fill(shorten(shown(found.labels[0]), 44), 22)}\n{found.probabilities[0]:.0%}",
            fontsize=8,
            parse_math=False,
        )
        for axis in axes[:, column]:
            axis.imshow(seen, extent=extent)
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
        for axis, method in zip(axes[1:, column], METHODS, strict=True):
            lay_map(axis, found.heat[method][0], extent)
        numbers += [
            (sample.source.names[column], method, row, place, f"{value:.6f}")
            for method in METHODS
            for row, line in enumerate(found.heat[method][0].tolist())
            for place, value in enumerate(line)
        ]
    for axis, method in zip(axes[1:, 0], METHODS, strict=True):
        axis.set_ylabel(method)
    return Drawing(figure, ("picture", "method", "row", "column", "value"), numbers)
