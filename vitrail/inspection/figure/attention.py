"""Figure 6 of arXiv 2010.11929: what the output looks at in the picture."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from vitrail.inspection.drawn import Drawn, require_sample
from vitrail.inspection.explanation import explain
from vitrail.inspection.sample import Sample
from vitrail.inspection.still import lay_over, show_picture
from vitrail.inspection.trace import require_attention

TITLE = "Attention from the output to the picture"
SAYS = (
    "Attention, followed back through all blocks (rollout), and what of it spoke for the likeliest class (relevance). "
    "A good classifier looks at what makes the class, not at what happens to stand beside it."
)
NEEDS_PICTURES = 6
METHODS = ("rollout", "relevance")


def draw(model: Any, sample: Sample | None) -> Drawn:
    """A column for each of a few pictures."""
    require_attention(model, "vitrail explain --method gradcam")
    sample = require_sample(sample, "attention maps")
    num = min(NEEDS_PICTURES, len(sample))
    figure = Figure(figsize=(1.9 * num, 6.2), layout="constrained")
    axes = figure.subplots(1 + len(METHODS), num, squeeze=False)
    numbers: list[tuple[object, ...]] = []
    for column in range(num):
        found = explain(model, sample.picture(column), methods=METHODS, top=1)
        show_picture(axes[0, column], found)
        axes[0, column].set_title(f"{found.labels[0]}\n{found.probabilities[0]:.0%}", fontsize=8)
        for row, method in enumerate(METHODS, start=1):
            show_picture(axes[row, column], found)
            lay_over(axes[row, column], found, found.heat[method][0])
            axes[row, column].set_title(method, fontsize=7)
        numbers += [
            (sample.source.names[column], method, row, place, f"{value:.6f}")
            for method in METHODS
            for row, line in enumerate(found.heat[method][0].tolist())
            for place, value in enumerate(line)
        ]
    return Drawn(figure, ("picture", "method", "row", "column", "value"), numbers)
