"""What sound and video files have in common: their suffixes, how they are opened, and the errors of both."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple

from vitrail.data.reader import unreadable
from vitrail.data.table import SOUND_SUFFIXES, SUFFIXES, VIDEO_SUFFIXES
from vitrail.errors import DataError, brief

MODALITIES = {
    **dict.fromkeys(SUFFIXES, "image"),
    **dict.fromkeys(SOUND_SUFFIXES, "sound"),
    **dict.fromkeys(VIDEO_SUFFIXES, "video"),
}
MediaContent = Path | bytes
"""An encoded clip: the file that holds it, or its bytes."""
Start = float | Callable[[float], float] | None
"""Where a segment starts, in seconds: a number, a function of the clip's length, or None for the middle of the clip."""
MAX_RATE = 192_000  # samples per second
MAX_CHANNELS = 32
FIRST_BYTES = 256  # enough to recognise a format


class Clip(NamedTuple):
    """An encoded clip and its name, for errors."""

    content: MediaContent
    name: str


class SoundInfo(NamedTuple):
    """What the header of a sound says."""

    rate: int
    """Samples per second."""
    num_samples: int
    """Of each channel."""
    channels: int


def modality_of(name: str) -> str | None:
    """`image`, `sound` or `video`, by the suffix of a file's name; None for any other file."""
    return MODALITIES.get(os.path.splitext(name)[1].lower())  # noqa: PTH122 - path objects would intern all names


def open_media(content: MediaContent, name: str) -> BinaryIO:
    """A clip as a file to read from; an empty one, a pipe or a device is refused before it can block."""
    size, file = (len(content), io.BytesIO(content)) if isinstance(content, bytes) else _open_file(content, name)
    if not size:
        file.close()
        raise DataError(f"{name} is empty.", got="0 bytes.", hint="a fresh copy, or leaving it out.")
    return file


def _open_file(path: Path, name: str) -> tuple[int, BinaryIO]:
    """The size of a regular file, and the file."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise unreadable(name, error) from None
    state = os.fstat(handle)
    if not stat.S_ISREG(state.st_mode):
        os.close(handle)
        raise DataError(f"{name} is not a regular file.", got="a folder, pipe or device.", hint="leaving it out.")
    return state.st_size, os.fdopen(handle, "rb")


def first_bytes(file: BinaryIO) -> bytes:
    """The first bytes of a file, by which its format is recognised."""
    file.seek(0)
    start = file.read(FIRST_BYTES)
    file.seek(0)
    return start


def not_readable(name: str, kind: str, start: bytes, formats: str) -> DataError:
    """The error for a file that is no sound, or no video."""
    return DataError(
        f"{name} is not a {kind} that Vitrail can read.", got=f"a file that begins with {start[:8]!r}.", hint=formats
    )


def missing_package(package: str, extra: str) -> DataError:
    """The error for a package that is not installed."""
    return DataError(f"reading {extra} needs the package {package}.", hint=f'pip install "vitrail[{extra}]".')


def damaged_clip(name: str, got: str) -> DataError:
    """The error for a clip that is recognised but cannot be decoded."""
    return DataError(f"{name} is damaged or truncated.", got=got, hint="a fresh copy, or leaving it out.")


def decoder_message(error: Exception) -> str:
    """What a decoder complains about, without its numbers and the names of Python objects."""
    message = getattr(error, "error_string", None) or getattr(error, "strerror", None)  # libsndfile, FFmpeg
    return brief(Exception(message.removeprefix("Error : "))) if message else brief(error)


def check_sound(info: SoundInfo, name: str, *, max_seconds: float) -> None:
    """Refuse a sound that exceeds the limits, before decoding it."""
    if not info.num_samples or not info.rate or not info.channels:
        raise DataError(f"{name} has no sound in it.", got="0 samples.", hint="leaving it out.")
    if info.rate > MAX_RATE or info.channels > MAX_CHANNELS:
        raise DataError(
            f"{name} has too many samples per second or channels.",
            got=f"{info.rate:,} Hz, {info.channels} channels.",
            hint=f"at most {MAX_RATE:,} Hz and {MAX_CHANNELS} channels.",
        )
    seconds = info.num_samples / info.rate
    if seconds > max_seconds:
        raise DataError(
            f"{name} is too long.",
            got=f"{seconds / 60:,.1f} minutes.",
            hint=f"cutting it into clips of at most {max_seconds / 60:.0f} minutes.",
        )
