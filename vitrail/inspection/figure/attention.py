"""Figure 6 of arXiv 2010.11929: attention from the output to the image."""

from __future__ import annotations

from textwrap import fill, shorten

from matplotlib.figure import Figure

from vitrail.contract import Classifier
from vitrail.errors import printable
from vitrail.inspection.drawing import Drawing, require_sample
from vitrail.inspection.explanation import explain_image
from vitrail.inspection.sample import Sample
from vitrail.inspection.still import draw_heatmap
from vitrail.inspection.trace import has_latents, require_attention
from vitrail.percent import percent

TITLE = "Attention from the output to the image"
DESCRIPTION = (
    "Attention rollout through all blocks, and relevance, the part of the attention that supports the top class. "
    "A good classifier attends to what defines the class, not to what often appears beside it."
)
NUM_IMAGES = 4
METHODS = ("rollout", "relevance")


def draw(model: Classifier, sample: Sample | None) -> Drawing:
    """A column for each of a few images, cropped to what the model sees."""
    if not has_latents(model):
        require_attention(model, "vitrail explain --method gradcam")
    sample = require_sample(sample, "attention maps")
    num = min(NUM_IMAGES, len(sample))
    figure = Figure(figsize=(1.7 * num, 1.7 * (1 + len(METHODS)) + 0.3), layout="constrained")
    axes = figure.subplots(1 + len(METHODS), num, squeeze=False)
    rows: list[tuple[object, ...]] = []
    for column in range(num):
        explanation = explain_image(model, sample.source.content(column), methods=METHODS, top=1)
        visible = model.preprocess.resize_and_crop(explanation.image)
        extent = (0, visible.shape[1], visible.shape[0], 0)
        axes[0, column].set_title(
            f"{fill(shorten(printable(explanation.labels[0]), 44), 22)}\n{percent(explanation.probabilities[0], 0)}",
            fontsize=8,
            parse_math=False,
        )
        for axis in axes[:, column]:
            axis.imshow(visible, extent=extent)
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
        for axis, method in zip(axes[1:, column], METHODS, strict=True):
            draw_heatmap(axis, explanation.heatmaps[method][0], extent)
        rows += [
            (sample.source.names[column], method, y, x, f"{value:.6f}")
            for method in METHODS
            for y, line in enumerate(explanation.heatmaps[method][0].tolist())
            for x, value in enumerate(line)
        ]
    for axis, method in zip(axes[1:, 0], METHODS, strict=True):
        axis.set_ylabel(method)
    return Drawing(figure, ("image", "method", "row", "column", "value"), rows)
