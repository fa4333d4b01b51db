"""Scans one clip, more strictly than training does: every second of a sound, the first, middle and last of a video."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from vitrail.data.cache import KEY_BYTES
from vitrail.data.media import MediaContent
from vitrail.data.scan import Scan
from vitrail.data.sound import read_sound, sound_info
from vitrail.data.table import Finding, Item
from vitrail.data.video import read_frames, video_info
from vitrail.errors import VitrailError, brief

CHUNK_SECONDS = 10.0
BLOCK = 2**20  # bytes hashed at a time
ERROR_KINDS = {
    "does not exist": "missing",
    "silent": "silent",
    "empty": "empty",
    "too large": "oversized",
    "too long": "oversized",
    "not a regular file": "special",
    "cannot be read": "unreadable",
}


def scan_clip(item: Item, modality: str) -> Scan:
    """Read and decode one clip; an error becomes its `problem`."""
    scan = Scan(item.index, item.name, item.labels)
    try:
        content = item.content()
        rate, seconds = _decode_sound(content, item.name) if modality == "sound" else _decode_video(content, item.name)
        key = _digest(content)
    except Exception as error:  # noqa: BLE001 - whatever decoders raise
        wrong, got = (error.wrong, error.got) if isinstance(error, VitrailError) else ("", brief(error))
        wrong = wrong.removeprefix(item.name)  # which may have such a word in it
        kind = next((kind for words, kind in ERROR_KINDS.items() if words in wrong), "damaged")
        return replace(scan, problem=Finding(item.name, kind, (got or wrong).rstrip(".")))
    suffix = PurePosixPath(item.name).suffix.lstrip(".").upper()
    return replace(scan, key=key, format=suffix, mode=f"{round(rate, 2):,.10g} per second", seconds=seconds)


def _decode_sound(content: MediaContent, name: str) -> tuple[float, float]:
    """Decode all of a sound; it may be silent for a while, but not all the time."""
    info = sound_info(content, name=name)
    total, silent = info.num_samples / info.rate, None
    num_chunks = max(1, int(-(-total // CHUNK_SECONDS)))
    num_silent = 0
    for number in range(num_chunks):
        start = number * CHUNK_SECONDS
        try:
            read_sound(content, rate=info.rate, start=start, seconds=min(CHUNK_SECONDS, total - start), name=name)
        except VitrailError as error:
            if "silent" not in error.wrong.removeprefix(name):
                raise
            silent, num_silent = error, num_silent + 1
    if silent is not None and num_silent == num_chunks:
        raise silent
    return info.rate, total


def _decode_video(content: MediaContent, name: str) -> tuple[float, float]:
    info = video_info(content, name=name)
    for start in (0.0, None, max(0.0, info.seconds - 1 / max(info.rate, 1.0))):
        read_frames(content, rate=1.0, start=start, num=1, resize=_keep_nothing, name=name)
    return info.rate, info.seconds


def _keep_nothing(pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return pixels[:1, :1]


def _digest(content: MediaContent) -> bytes:
    """A hash of a clip's bytes, read in blocks."""
    hasher = hashlib.blake2b(digest_size=KEY_BYTES)
    if isinstance(content, Path):
        with content.open("rb") as file:
            while block := file.read(BLOCK):
                hasher.update(block)
    else:
        hasher.update(content)
    return hasher.digest()


def clip_notes(good: Sequence[Scan]) -> Iterator[str]:
    """Mixed rates and lengths."""
    rates = Counter(scan.mode for scan in good)
    if len(rates) > 1:
        listed = ", ".join(f"{rate} {num:,}" for rate, num in rates.most_common(5))
        yield f"rates are mixed: {listed}; Vitrail brings all to one"
    seconds = sorted(scan.seconds for scan in good)
    if seconds and seconds[-1] > seconds[0]:
        middle = float(np.median(seconds))
        yield f"lengths are mixed: {seconds[0]:.3g} to {seconds[-1]:.3g} s, half of them up to {middle:.3g} s"
