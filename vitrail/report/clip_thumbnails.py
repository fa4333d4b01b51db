"""Clips as small images: four frames of a video, the waveform of a sound."""

from __future__ import annotations

from typing import Any

import numpy as np

from vitrail.data.decode import Pixels
from vitrail.data.media import MediaContent
from vitrail.data.resize import resize
from vitrail.data.sound import read_sound, sound_info
from vitrail.data.video import read_frames, video_info
from vitrail.errors import VitrailError

FRAMES = 2  # per row and column
MAX_SECONDS = 60.0  # of a sound
BACKGROUND, INK = (246, 246, 244), (46, 92, 138)
PEAK = 0.46  # of the height, for the loudest sample


def draw_clip(content: MediaContent, modality: str, side: int) -> Pixels | None:
    """A square image of a clip; None if it cannot be shown."""
    try:
        return _draw_frames(content, side) if modality == "video" else draw_waveform(_read_waveform(content), side)
    except (VitrailError, OSError):
        return None


def _draw_frames(content: MediaContent, side: int) -> Pixels:
    """Frames in reading order, evenly spaced in time."""
    seconds = max(video_info(content, name="the video").seconds, 1e-3)
    num, cell = FRAMES**2, side // FRAMES
    frames = read_frames(
        content,
        rate=min(num / seconds, 120.0),
        start=0.0,
        num=num,
        resize=lambda pixels: resize(pixels, cell, cell, "bilinear"),
        name="the video",
    )
    return np.concatenate(
        [np.concatenate(list(frames[row * FRAMES : (row + 1) * FRAMES]), axis=1) for row in range(FRAMES)]
    )


def _read_waveform(content: MediaContent) -> np.ndarray[Any, Any]:
    info = sound_info(content, name="the sound")
    seconds = min(info.num_samples / info.rate, MAX_SECONDS)
    return read_sound(content, rate=min(info.rate, 8000), start=0.0, seconds=seconds, name="the sound")


def draw_waveform(wave: np.ndarray[Any, Any], width: int, height: int | None = None) -> Pixels:
    """The range of the samples behind each column of pixels, the loudest near the edge."""
    height = width if height is None else height
    columns = np.array_split(wave / max(float(np.abs(wave).max()), 1e-9), width)
    pixels = np.full((height, width, 3), BACKGROUND, dtype=np.uint8)
    for x, part in enumerate(columns):
        low, high = (float(part.min()), float(part.max())) if len(part) else (0.0, 0.0)
        top, bottom = (round(height / 2 - PEAK * height * value) for value in (high, low))
        pixels[top : bottom + 1, x] = INK
    return pixels
