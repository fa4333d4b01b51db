"""An explanation of a text as a static figure: its attention as matrices with the tokens beside them."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from numpy.typing import NDArray

from vitrail.inspection.text_explanation import TextExplanation
from vitrail.inspection.text_page import SEQUENCES, TITLES
from vitrail.inspection.text_trace import AttentionMap

MAX_LABELLED = 64  # tokens
MAX_LABEL = 12  # characters
CELL, MIN_PANEL, MAX_PANEL = 0.19, 3.2, 9.0  # inches
Panel = tuple[str, NDArray[np.float32], AttentionMap]


def draw(explanation: TextExplanation) -> Figure:
    """A panel for the last block and one for the rollout; for a translator, its alignment and both self-attentions."""
    panels = [panel for attention in explanation.maps for panel in _panels(attention, len(explanation.maps) == 1)]
    widths = [_side(values.shape[1]) for _, values, _ in panels]
    height = max(_side(len(values)) for _, values, _ in panels)
    layout = ConstrainedLayoutEngine(h_pad=0.12)  # inches; with less, titles are cut off
    figure = Figure(figsize=(sum(widths) + 1.2 * len(panels), height + 1.4), layout=layout)
    axes = figure.subplots(1, len(panels), squeeze=False, width_ratios=widths)[0]
    for axis, (title, values, attention) in zip(axes, panels, strict=True):
        rows, columns = (explanation.sequences[name] for name in SEQUENCES[attention.name])
        axis.set_title(title, fontsize=9, parse_math=False)
        axis.imshow(_scale(values, causal=attention.causal), cmap="viridis", interpolation="nearest", vmin=0, vmax=1)
        _label(axis.set_xticks, [token.text for token in columns], rotation=90)
        _label(axis.set_yticks, [token.text for token in rows])
    return figure


def _panels(attention: AttentionMap, alone: bool) -> list[Panel]:
    depth, title = len(attention.weights), TITLES[attention.name]
    if attention.rollout is None:
        return [(f"{title}, mean over blocks and heads", attention.weights.mean(axis=(0, 1)), attention)]
    last = attention.weights[-1].mean(axis=0)
    panels: list[Panel] = [(f"{title}, block {depth}, mean over heads", last, attention)]
    return (
        [*panels, (f"Rollout over {depth} block{'s' * (depth != 1)}", attention.rollout, attention)]
        if alone
        else panels
    )


def _scale(values: NDArray[np.float32], *, causal: bool) -> Any:
    """Each row divided by its maximum, or by three times uniform attention if that is more, as on the page."""
    visible = np.tril(np.ones_like(values, dtype=bool)) if causal else np.ones_like(values, dtype=bool)
    scale = np.maximum(values.max(axis=1), np.minimum(1, 3 / visible.sum(axis=1)))
    return np.ma.masked_array(values / scale[:, None], ~visible)


def _side(num: int) -> float:
    return min(MAX_PANEL, max(MIN_PANEL, CELL * num))


def _label(set_ticks: Any, texts: list[str], **options: Any) -> None:
    if len(texts) > MAX_LABELLED:
        set_ticks([])
        return
    short = [text if len(text) <= MAX_LABEL else text[: MAX_LABEL - 1] + "…" for text in texts]
    set_ticks(range(len(texts)), short, fontsize=8, parse_math=False, **options)
