"""The explanation of a clip as a static figure: its waveform, spectrogram or frames under each heatmap."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from vitrail import plug
from vitrail.data.decode import Pixels
from vitrail.data.spectrogram import LOWEST
from vitrail.errors import printable
from vitrail.inspection.clip_drawing import draw_spectrogram, draw_waveform, multiply, pool_columns
from vitrail.inspection.clip_explanation import ClipExplanation, scaled
from vitrail.inspection.explanation import METHODS
from vitrail.inspection.still import draw_heatmap
from vitrail.percent import percent

MAX_CLASSES = 3
MAX_FRAMES = 8
WAVE_SIZE = (240, 960)  # rows and columns of pixels
SPECTROGRAM_SIDE = 4  # pixels of each value


def draw(explanation: ClipExplanation) -> Figure:
    """A row per class and a column per method; for a video, a row for both and a column per frame."""
    return _draw_video(explanation) if explanation.modality == "video" else _draw_sound(explanation)


def _draw_sound(explanation: ClipExplanation) -> Figure:
    methods = list(explanation.heatmaps)
    num = min(MAX_CLASSES, len(explanation.classes))
    figure = Figure(figsize=(3.6 * len(methods), 1.6 * num + 0.5), layout="constrained")
    axes = figure.subplots(num, len(methods), squeeze=False, sharex=True)
    preprocess = explanation.patches.preprocess
    for row, column in np.ndindex(num, len(methods)):
        axis: Any = axes[row, column]
        heat = heat_image(explanation, methods[column], row)
        axis.imshow(multiply(draw_base(explanation), heat), extent=(0, preprocess.seconds, 0, 1), aspect="auto")
        title = _class_title(explanation, row) if column == 0 else ""
        axis.set_title(title, fontsize=9, loc="left", parse_math=False)
        if row == 0:
            axis.set_title(plug.load(METHODS, methods[column]).TITLE, fontsize=9, loc="right")
        axis.tick_params(labelsize=8)
        axis.set_yticks([])
        if preprocess.mels and column == 0:
            axis.set_yticks([0, 1], [f"{LOWEST:.0f} Hz", f"{preprocess.rate / 2000:g} kHz"])
    for axis in axes[-1]:
        axis.set_xlabel("seconds", fontsize=8)
    return figure


def draw_base(explanation: ClipExplanation) -> Pixels:
    """The waveform or the spectrogram."""
    patches = explanation.patches
    if patches.form == "waveform":
        return draw_waveform(patches.sample, WAVE_SIZE[1], WAVE_SIZE[0])
    pixels = draw_spectrogram(patches.inputs)
    return pixels.repeat(SPECTROGRAM_SIDE, axis=0).repeat(SPECTROGRAM_SIDE, axis=1)


def heat_image(explanation: ClipExplanation, method: str, index: int) -> NDArray[np.floating[Any]]:
    """The heatmap of a sound from 0 to 1 as rows and columns, low frequencies at the bottom, pooled if it is long."""
    heat = explanation.heatmaps[method][index]
    return scaled(pool_columns(heat[None] if heat.ndim == 1 else heat[::-1], WAVE_SIZE[1]))


def _draw_video(explanation: ClipExplanation) -> Figure:
    frames, preprocess = explanation.sample, explanation.patches.preprocess
    num_layers = explanation.patches.grid[0]
    layers = sorted({round(each) for each in np.linspace(0, num_layers - 1, min(MAX_FRAMES, num_layers))})
    methods = list(explanation.heatmaps)
    rows = [
        (index, method)
        for index in range(min(MAX_CLASSES, len(explanation.classes)))
        for method in methods
        if not index or not np.array_equal(*explanation.heatmaps[method][[0, index]])  # rollout is the same for all
    ]
    height, width = frames.shape[1:3]
    side = 1.3
    figure = Figure(
        figsize=(side * len(layers) + 0.3, (side * height / width + 0.2) * len(rows) + 0.4), layout="constrained"
    )
    axes = figure.subplots(len(rows), len(layers), squeeze=False)
    for row, (index, method) in enumerate(rows):
        heat = scaled(explanation.heatmaps[method][index])
        for column, layer in enumerate(layers):
            axis, frame = axes[row, column], layer * explanation.patches.patch[0]
            axis.imshow(frames[frame], extent=(0, width, height, 0))
            draw_heatmap(axis, heat[layer], (0, width, height, 0), peak=1.0)
            axis.set_axis_off()
            if row + 1 == len(rows):
                axis.text(width, 1.03 * height, f"{frame / preprocess.rate:.2f} s", fontsize=8, ha="right", va="top")
        title = f"{_class_title(explanation, index)}: {plug.load(METHODS, method).TITLE}"
        axes[row, 0].set_title(title, fontsize=8, loc="left", parse_math=False)
    return figure


def _class_title(explanation: ClipExplanation, index: int) -> str:
    return f"{printable(explanation.labels[index])}, {percent(explanation.probabilities[index])}"
