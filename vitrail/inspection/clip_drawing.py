"""Sounds and videos as images: waveforms, spectrograms, and heatmaps to lay over them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.decode import Pixels

BACKGROUND, INK = (246, 246, 244), (46, 92, 138)
TINT = (244, 110, 16)
"""The colour of heat over a sound: it is multiplied, so that the ink stays visible."""
SAMPLES_PER_PIXEL = 4  # at least
PEAK = 0.46  # of the height, for the loudest sample
CONTRAST = (2.0, 99.5)  # percentiles of a spectrogram that become white and black
OPACITY = 0.7
Rgba = NDArray[np.uint8]


def draw_waveform(
    wave: NDArray[np.floating[Any]], width: int, height: int | None = None, *, peak: float | None = None, line: int = 1
) -> Pixels:
    """The range of the samples behind each column of pixels, the loudest (or `peak`) near the edge.

    `line` is the least number of pixels that are inked in each column.
    """
    height = width if height is None else height
    loudest = float(np.abs(wave).max(initial=0.0)) if peak is None else peak
    if 0 < len(wave) < SAMPLES_PER_PIXEL * width:  # so that neighbours are connected
        places = np.linspace(0, len(wave) - 1, SAMPLES_PER_PIXEL * width)
        wave = np.interp(places, np.arange(len(wave)), wave)
    edges = np.linspace(0, len(wave), width + 1)
    pixels = np.full((height, width, 3), BACKGROUND, dtype=np.uint8)
    for x, (start, stop) in enumerate(pairwise(edges)):
        part = wave[int(start) : int(stop) + 1] / max(loudest, 1e-9)  # one more, to meet the next column
        low, high = (float(part.min()), float(part.max())) if len(part) else (0.0, 0.0)
        top, bottom = (round(height / 2 - PEAK * height * value) for value in (high, low))
        missing = max(0, line - (bottom + 1 - top))
        pixels[top - missing // 2 : bottom + 1 + (missing + 1) // 2, x] = INK
    return pixels


def draw_samples(wave: NDArray[np.floating[Any]], cell: tuple[int, int], *, peak: float) -> Pixels:
    """Each sample as a bar from the middle of a cell of its own, all in one row."""
    height, width = cell
    pixels = np.full((height, width * len(wave), 3), BACKGROUND, dtype=np.uint8)
    for index, value in enumerate(wave / max(peak, 1e-9)):
        ends = sorted((height // 2, round(height / 2 - PEAK * height * float(value))))
        pixels[ends[0] : ends[1] + 1, index * width + width // 4 : (index + 1) * width - width // 4] = INK
    return pixels


def draw_spectrogram(bands: NDArray[np.floating[Any]]) -> Pixels:
    """Bands x frames as pixels, low frequencies at the bottom, loud ones dark."""
    low, high = np.percentile(bands, CONTRAST)
    loud = np.clip((bands[::-1] - low) / max(float(high - low), 1e-9), 0.0, 1.0)[..., None]
    return (np.array(BACKGROUND) * (1 - loud) + np.array((20, 24, 40)) * loud).round().astype(np.uint8)


def tint(heat: NDArray[np.floating[Any]]) -> Rgba:
    """Heat from 0 to 1 as the strength of one colour, for sounds."""
    alpha = (np.clip(heat, 0.0, 1.0) * 255).round().astype(np.uint8)
    return np.dstack([np.full(heat.shape, level, dtype=np.uint8) for level in TINT] + [alpha])


def viridis(heat: NDArray[np.floating[Any]], *, opaque: bool = False) -> Rgba:
    """Heat from 0 to 1 as colours, more transparent where it is low, for frames."""
    from matplotlib import colormaps  # takes half a second, needed only here

    colours = colormaps["viridis"](np.clip(heat, 0.0, 1.0))
    if not opaque:
        colours[..., 3] = 0.4 + 0.6 * np.clip(heat, 0.0, 1.0)
    return (colours * 255).round().astype(np.uint8)


def multiply(pixels: Pixels, heat: NDArray[np.floating[Any]]) -> Pixels:
    """A drawing of a sound tinted by heat, each cell of which covers the same number of pixels, more or less."""
    rows, columns = (
        np.minimum(np.arange(num) * cells // num, cells - 1)
        for num, cells in zip(pixels.shape[:2], heat.shape, strict=True)
    )
    strength = np.clip(heat, 0.0, 1.0)[rows][:, columns, None]
    return (pixels * (1 - strength + strength * np.array(TINT) / 255)).round().astype(np.uint8)


def pool_columns(values: NDArray[np.floating[Any]], most: int) -> NDArray[np.floating[Any]]:
    """The means of neighbouring columns, so that there are at most this many."""
    num = values.shape[-1]
    step = -(-num // most)
    if step <= 1:
        return values
    starts = np.arange(0, num, step)
    sums = np.add.reduceat(values, starts, axis=-1)
    return sums / np.diff(np.append(starts, num))
