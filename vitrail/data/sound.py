"""The one reader of sound: a segment of a clip as a mono waveform, from WAV, FLAC or the sound track of a video.

The content decides the format, not the name. Only the segment is decoded, a block at a time, so that memory depends on
its length and not on the clip's.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from vitrail.data.media import (
    MediaContent,
    SoundInfo,
    Start,
    check_sound,
    damaged_clip,
    decoder_message,
    first_bytes,
    missing_package,
    not_readable,
    open_media,
)
from vitrail.data.video import is_video, open_track
from vitrail.errors import DataError

Waveform = NDArray[np.float32]
MAX_SECONDS = 600.0
BLOCK = 65_536  # samples decoded at once
HALF_WIDTHS = 10  # the zero crossings of the resampling filter on either side, SciPy's default
MAX_CHUNKS = 1_000  # of a WAV file, before its samples
UNKNOWN_SIZE = 0xFFFFFFFF  # of a chunk in RF64, whose size is in `ds64`
UNKNOWN_LENGTH = 2**62
FORMATS = ("WAV", "WAVEX", "RF64", "FLAC")
FORMATS_HINT = "WAV or FLAC, or a video with sound."


class Track(Protocol):
    """A clip that is open for reading."""

    info: SoundInfo

    def read(self, first: int, num: int) -> Waveform:
        """These samples as mono, all of them inside the clip."""


def sound_info(content: MediaContent, *, name: str) -> SoundInfo:
    """The rate, length and channels of a clip, from its header."""
    with _open_track(content, name) as track:
        return track.info


def read_sound(content: MediaContent, *, rate: int, start: Start, seconds: float, name: str) -> Waveform:
    """A segment of a clip as round(rate * seconds) samples of mono; zeros where it extends beyond the clip.

    A negative `start` places the clip later in the segment. None is the middle of the clip; a clip that is shorter than
    the segment then comes first. Unless `start` is a number, a silent segment is replaced by the clip's loudest part.
    """
    with _open_track(content, name) as track:
        info = track.info
        length = info.num_samples / info.rate
        middle = max(0.0, (length - seconds) / 2)
        begin = middle if start is None else start(length) if callable(start) else start
        segment = _segment(track, round(begin * info.rate), rate, seconds)
        if segment is None and not isinstance(start, float | int) and seconds < length <= MAX_SECONDS:
            segment = _segment(track, _loudest(track, math.ceil(seconds * info.rate)), rate, seconds)
    if segment is None:
        raise DataError(f"{name} is silent.", got="samples that are all the same.", hint="leaving it out.")
    return segment


def _segment(track: Track, first: int, rate: int, seconds: float) -> Waveform | None:
    """The segment from sample `first` of the clip, resampled; None if it is silent."""
    from scipy.signal import resample_poly

    info, num = track.info, round(rate * seconds)
    common = math.gcd(rate, info.rate)
    up, down = rate // common, info.rate // common
    # The filter looks beyond both ends, by whole steps of both grids: what lies there is the clip's own sound.
    steps = 0 if up == down else math.ceil(HALF_WIDTHS * max(1.0, down / up) / down)
    needed = -(-num * down // up)
    wide = np.zeros(needed + 2 * steps * down, dtype=np.float32)
    begin = first - steps * down
    inside = slice(max(0, -begin), min(len(wide), info.num_samples - begin))
    if inside.stop > inside.start:
        wide[inside] = track.read(begin + inside.start, inside.stop - inside.start)
    heard = wide[max(-begin, steps * down) : min(steps * down + needed, info.num_samples - begin)]
    if not len(heard) or heard.min() == heard.max():  # a constant is no sound either
        return None
    if up != down:
        wide = resample_poly(wide, up, down).astype(np.float32, copy=False)
    return np.ascontiguousarray(wide[steps * up : steps * up + num])


def _loudest(track: Track, num: int) -> int:
    """The first sample of the loudest of the clip's parts of this length."""
    starts = range(0, track.info.num_samples, num)
    parts = (track.read(first, min(num, track.info.num_samples - first)) for first in starts)
    return starts[int(np.argmax([float(np.std(part, dtype=np.float64)) for part in parts]))]


@contextmanager
def _open_track(content: MediaContent, name: str) -> Iterator[Track]:
    """A clip of any kind, open for reading."""
    with open_media(content, name) as file:
        start = first_bytes(file)
        if start[:4] == b"fLaC" or start[:3] == b"ID3" or (start[:4] in (b"RIFF", b"RF64") and start[8:12] == b"WAVE"):
            with _open_soundfile(file, name, start) as track:
                yield track
            return
    if not is_video(start):
        raise not_readable(name, "sound", start, FORMATS_HINT)
    with open_track(content, name) as track:
        yield track


@contextmanager
def _open_soundfile(file: BinaryIO, name: str, start: bytes) -> Iterator[Track]:
    try:
        import soundfile
    except (ImportError, OSError):  # the package, or the library that it wraps
        raise missing_package("soundfile", "sound") from None
    if start[8:12] == b"WAVE":
        _check_wav(file, name)
    try:
        opened = soundfile.SoundFile(file)
    except Exception as error:  # noqa: BLE001 - a decoder's errors are many
        if start[:3] == b"ID3":
            raise not_readable(name, "sound", start, FORMATS_HINT) from None
        raise damaged_clip(name, decoder_message(error)) from None
    with opened:
        if opened.format not in FORMATS:
            raise not_readable(name, "sound", start, FORMATS_HINT)
        if opened.frames >= UNKNOWN_LENGTH:
            raise DataError(
                f"{name} does not say how long it is.", got="a header without a length.", hint="encoding it again."
            )
        info = SoundInfo(opened.samplerate, opened.frames, opened.channels)
        check_sound(info, name, max_seconds=MAX_SECONDS)
        yield _SoundFile(opened, info, name)


class _SoundFile:
    """A WAV or FLAC file that is open for reading."""

    def __init__(self, file: Any, info: SoundInfo, name: str) -> None:
        self.file, self.info, self.name = file, info, name

    def read(self, first: int, num: int) -> Waveform:
        """These samples as mono."""
        mono = np.empty(num, dtype=np.float32)
        try:
            self.file.seek(first)
            for start in range(0, num, BLOCK):
                block = self.file.read(min(BLOCK, num - start), dtype="float32", always_2d=True)
                if len(block) < min(BLOCK, num - start):
                    got = f"{first + start + len(block):,} of {self.info.num_samples:,} samples."
                    raise damaged_clip(self.name, got)
                with np.errstate(over="ignore", invalid="ignore"):
                    block.mean(axis=1, out=mono[start : start + len(block)])
        except DataError:
            raise
        except Exception as error:  # noqa: BLE001 - a decoder's errors are many
            raise damaged_clip(self.name, decoder_message(error)) from None
        return check_samples(mono, self.name)


def check_samples(mono: Waveform, name: str) -> Waveform:
    """Refuse samples that are not finite."""
    if not np.isfinite(mono).all():
        raise DataError(f"{name} has samples that are not finite.", got="NaN or infinity.", hint="leaving it out.")
    return mono


def _check_wav(file: BinaryIO, name: str) -> None:
    """Compare the size in the header with the file's, because libsndfile reads a truncated file without complaint."""
    size = file.seek(0, 2)
    place, large = 12, 0
    for _ in range(MAX_CHUNKS):
        file.seek(place)
        header = file.read(8)
        if len(header) < 8:
            break
        length = struct.unpack("<I", header[4:])[0]
        if header[:4] == b"ds64" and len(sizes := file.read(16)) == 16:
            large = struct.unpack("<Q", sizes[8:])[0]
        if header[:4] == b"data":
            length = large if length == UNKNOWN_SIZE and large else length
            if place + 8 + length > size:
                raise damaged_clip(name, f"{size - place - 8:,} of {length:,} bytes of samples.")
            file.seek(0)
            return
        place += 8 + length + length % 2
    raise damaged_clip(name, "a header without samples.")
