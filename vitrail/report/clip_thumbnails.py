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
from vitrail.inspection.clip_drawing import draw_waveform

FRAMES = 2  # per row and column
MAX_SECONDS = 60.0  # of a sound


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
