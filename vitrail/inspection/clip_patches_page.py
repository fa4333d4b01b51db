"""How a clip is cut into tokens, as an offline page: numbered pieces of a waveform, a spectrogram or frames."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitrail.data.decode import Pixels
from vitrail.inspection.clip_drawing import draw_samples, draw_spectrogram, draw_waveform
from vitrail.inspection.clip_patches import ClipPatches
from vitrail.inspection.data_url import png_url
from vitrail.pages import render_template

MAX_FRAMES = 16  # on a page
MAX_PIECES = 400  # of a waveform, on a page
PIECES_PER_ROW = 10
CELL = (96, 96)  # rows and columns of pixels of a piece of a waveform
LINE = 3  # pixels of the waveform in a cell
SAMPLE_CELL = (64, 16)  # likewise of a single sample
SAMPLES_PER_ROW = 40
OVERVIEW = (120, 1200)


class Panel(NamedTuple):
    """An image cut into numbered cells."""

    image: str
    numbers: list[list[int]]
    """Of the tokens, row by row from the top."""
    aspect: float
    """The width of a cell divided by its height."""
    caption: str = ""


def render_clip(patches: ClipPatches) -> str:
    """The page of a clip."""
    draw = {"waveform": _waveform, "spectrogram": _spectrogram, "video": _frames}[patches.form]
    panels = draw(patches)
    shown = sorted({number for panel in panels for row in panel.numbers for number in row})
    overview = png_url(draw_waveform(patches.sample, OVERVIEW[1], OVERVIEW[0])) if patches.form == "waveform" else ""
    return render_template(
        "vitrail.inspection",
        "clip_patches_page.html",
        patches=patches,
        name=Path(patches.clip).name,
        panels=panels,
        overview=overview,
        first=shown[0],
        last=shown[-1],
        all_shown=len(shown) == patches.num_patches,
    )


def _waveform(patches: ClipPatches) -> list[Panel]:
    """Pieces of the waveform in rows, as in a text; of many, those around the loudest one."""
    (num,), wave = patches.grid, patches.sample
    single = patches.num_numbers == 1
    per_row, cell = (SAMPLES_PER_ROW, SAMPLE_CELL) if single else (PIECES_PER_ROW, CELL)
    loudest = int(np.abs(wave).argmax()) * num // len(wave)
    first = max(0, min(loudest - MAX_PIECES // 2, num - MAX_PIECES))
    last, size, peak = min(num, first + MAX_PIECES), len(wave) // num, float(np.abs(wave).max())
    lines: list[Pixels] = []
    for start in range(first, last, per_row):
        part = wave[start * size : min(start + per_row, last) * size]
        count = len(part) // size
        line = (
            draw_samples(part, cell, peak=peak)
            if single
            else draw_waveform(part, cell[1] * count, cell[0], peak=peak, line=LINE)
        )
        lines.append(np.pad(line, ((0, 0), (0, cell[1] * (per_row - count)), (0, 0)), constant_values=255))
    numbers = [list(range(start + 1, min(start + per_row, last) + 1)) for start in range(first, last, per_row)]
    return [Panel(png_url(np.concatenate(lines)), numbers, cell[1] / cell[0])]


def _spectrogram(patches: ClipPatches) -> list[Panel]:
    rows, columns = patches.grid
    numbers = [[row * columns + column + 1 for column in range(columns)] for row in reversed(range(rows))]
    return [Panel(png_url(draw_spectrogram(patches.inputs)), numbers, patches.patch[1] / patches.patch[0])]


def _frames(patches: ClipPatches) -> list[Panel]:
    """A panel for each frame; a tube has the same number in all of its frames."""
    _, rows, columns = patches.grid
    depth, height, width = patches.patch
    panels = []
    for index, frame in enumerate(patches.sample[:MAX_FRAMES]):
        start = index // depth * rows * columns + 1
        numbers = [list(range(start + row * columns, start + (row + 1) * columns)) for row in range(rows)]
        caption = f"Frame {index + 1}, {index / patches.preprocess.rate:.2f} s"
        panels.append(Panel(png_url(frame), numbers, width / height, caption))
    return panels
