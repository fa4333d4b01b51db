"""Sound: the right samples of the right part, in little memory; each bad file is named, with one message."""

from __future__ import annotations

import os
import struct
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from tests.contract.small_clips import ramp_video, sound_only, wav
from vitrail.data import media
from vitrail.data.media import MediaContent, modality_of
from vitrail.data.sound import SoundInfo, read_sound, sound_info
from vitrail.errors import DataError

RATE = 16_000
NOISE = np.random.default_rng(0).uniform(-0.5, 0.5, 3 * RATE).astype(np.float32)


def read(content: MediaContent, *, start: float | None = None, seconds: float = 1.0, rate: int = RATE) -> np.ndarray:
    return read_sound(content, rate=rate, start=start, seconds=seconds, name="bark.wav")


@pytest.mark.data
@pytest.mark.parametrize("suffix", media.SOUND_SUFFIXES)
def test_a_real_recording(data_dir: Path, tmp_path: Path, suffix: str) -> None:
    with np.load(data_dir / "audio" / "fsdd_8k_int16.npz") as file:
        samples, rate = file["audio"][file["offsets"][0] : file["offsets"][1]], int(file["sample_rate"])
    path = tmp_path / f"zero{suffix}"
    path.write_bytes(wav(samples, rate, format=suffix[1:].upper()))
    assert sound_info(path, name="zero") == SoundInfo(rate, len(samples), 1)
    whole = samples / np.float32(32768)
    seconds = 0.1
    first = round((len(samples) / rate - seconds) / 2 * rate)
    middle = read_sound(path, rate=rate, start=None, seconds=seconds, name="zero")
    assert np.array_equal(middle, whole[first : first + 800])
    padded = read_sound(path, rate=rate, start=None, seconds=2.0, name="zero")
    assert np.array_equal(padded[: len(whole)], whole), "a shorter clip comes first"
    assert not padded[len(whole) :].any()
    assert len(read_sound(path, rate=16_000, start=None, seconds=0.25, name="zero")) == 4_000


@pytest.mark.parametrize("channels", [1, 2])
def test_a_tone_keeps_its_pitch_and_level(channels: int) -> None:
    times = np.arange(44_100 * 2) / 44_100
    tone = 0.5 * np.sin(2 * np.pi * 440 * times)
    segment = read(wav(np.stack([tone] * channels, axis=1), 44_100), start=0.5)
    expected = 0.5 * np.sin(2 * np.pi * 440 * (0.5 + np.arange(RATE) / RATE))
    assert np.abs(segment - expected).max() < 2e-3


def test_channels_are_averaged() -> None:
    stereo = np.stack([NOISE, -NOISE * 0.5], axis=1)
    assert np.allclose(read(wav(stereo, RATE, subtype="FLOAT"), start=1.0), NOISE[RATE : 2 * RATE] * 0.25, atol=1e-6)


@pytest.mark.parametrize("format", ["WAV", "FLAC", "mp4", "avi", "matroska"])
@pytest.mark.parametrize("rate", [RATE, 8_000, 22_050])
def test_a_part_is_a_part_of_the_whole(format: str, rate: int) -> None:
    clip = (
        wav(NOISE, RATE, format=format) if format.isupper() else ramp_video(format=format, num_frames=30, sound=NOISE)
    )
    whole = read(clip, start=0.0, seconds=3.0, rate=rate)
    assert np.array_equal(read(clip, start=1.0, rate=rate), whole[rate : 2 * rate])
    assert np.array_equal(read(clip, start=2.0, seconds=2.0, rate=rate)[:rate], whole[2 * rate :])
    assert np.array_equal(read(clip, rate=rate), whole[rate : 2 * rate]), "the middle"
    early = read(clip, start=-1.0, seconds=2.0, rate=rate)
    assert np.array_equal(early[rate:], whole[:rate]), "a negative start"
    if rate == RATE and format != "mp4":  # AAC loses a little
        assert np.abs(whole - NOISE).max() < 1e-4


def test_a_function_chooses_the_start() -> None:
    clip = wav(NOISE, RATE)
    segment = read_sound(clip, rate=RATE, start=lambda seconds: seconds - 1.0, seconds=1.0, name="bark.wav")
    assert np.array_equal(segment, read(clip, start=2.0))


def test_the_loudest_part_stands_in_for_a_silent_middle() -> None:
    """As in ESC-50, where short sounds are padded with zeros."""
    padded = np.zeros(5 * RATE, dtype=np.float32)
    padded[: RATE // 2] = NOISE[: RATE // 2]
    clip = wav(padded, RATE, subtype="FLOAT")
    assert np.array_equal(read(clip), padded[:RATE])
    with pytest.raises(DataError, match=r"bark\.wav is silent"):
        read(clip, start=2.0)


@pytest.mark.data
def test_the_sound_track_of_a_real_video(data_dir: Path) -> None:
    path = data_dir / "video" / "SOX5yA1l24A.mp4"
    assert sound_info(path, name="video") == SoundInfo(48_000, 530_880, 1)
    whole = read(path, start=0.0, seconds=11.0)
    assert whole.std() > 0.01
    assert np.allclose(read(path, start=4.0), whole[4 * RATE : 5 * RATE], atol=1e-5)


def large_header(content: bytes, size: int) -> bytes:
    """The same WAV with another size of its samples in the header."""
    place = content.index(b"data") + 4
    return content[:place] + struct.pack("<I", size) + content[place + 4 :]


def with_samples(value: float, place: int = RATE) -> bytes:
    samples = NOISE.copy()
    samples[place : place + 9_000] = value
    return wav(samples, RATE, subtype="FLOAT")


def unknown_length() -> bytes:
    """A FLAC from a stream: no number of samples in its header."""
    content = bytearray(wav(NOISE, RATE, format="FLAC"))
    content[21] &= 0xF0  # STREAMINFO: 36 bits from here
    content[22:26] = bytes(4)
    return bytes(content)


BAD = {
    "an empty file": (b"", "is empty"),
    "a text": (b"not a sound at all, but a text", "is not a sound that Vitrail can read"),
    "an image": (b"\x89PNG\r\n\x1a\n" + bytes(100), "is not a sound that Vitrail can read"),
    "an MP3": (b"ID3\x04" + bytes(200), "is not a sound that Vitrail can read"),
    "half a WAV": (wav(NOISE, RATE)[:40_000], "is damaged or truncated.*\n.*39,956 of 96,000 bytes of samples"),
    "half a FLAC": (wav(NOISE, RATE, format="FLAC")[:20_000], "is damaged or truncated"),
    "half a header": (wav(NOISE, RATE)[:30], "is damaged or truncated"),
    "4 GiB in the header": (large_header(wav(NOISE, RATE), 0xFFFFFFFE), "is damaged or truncated"),
    "no size in the header": (large_header(wav(NOISE, RATE), 0xFFFFFFFF), "is damaged or truncated"),
    "no samples": (wav(NOISE[:0], RATE), "has no sound in it"),
    "no length": (unknown_length(), "does not say how long it is"),
    "silence": (wav(np.zeros(RATE), RATE), "is silent"),
    "a constant": (wav(np.full(RATE, 0.25), RATE), "is silent"),
    "one sample": (wav(NOISE[:1], RATE), "is silent"),
    "NaN": (with_samples(np.nan), "has samples that are not finite"),
    "infinity": (with_samples(np.inf), "has samples that are not finite"),
    "too long": (wav(NOISE[: 8 * 601], 8), "is too long.*\n.*10.0 minutes"),
    "too fast": (wav(NOISE, 192_001), "has too many samples per second or channels.*\n.*192,001 Hz"),
    "too wide": (wav(np.zeros((10, 33)), RATE), "has too many samples per second or channels.*\n.*33 channels"),
    "a silent film": (ramp_video(num_frames=5), "has no sound.\n.*a video without a sound track"),
    "half a video": (ramp_video(num_frames=5, sound=NOISE)[:10_000], "is damaged or truncated"),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("as_file", [True, False])
def test_a_bad_file_is_named(kind: str, as_file: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    content, message = BAD[kind]
    path = tmp_path / "bark.wav"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"bark\.wav {message}"):
        read(path if as_file else content)
    assert capfd.readouterr() == ("", ""), "decoders print nothing"


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, message in ((tmp_path / "pipe", "is not a regular file"), (tmp_path, "is not a regular file")):
        with pytest.raises(DataError, match=message):
            read(path)
    with pytest.raises(DataError, match=r"bark\.wav does not exist"):
        read(tmp_path / "bark.wav")


def test_the_content_decides_the_format(tmp_path: Path) -> None:
    path = tmp_path / "bark.wav"
    samples = (NOISE * 32767).astype(np.int16)
    path.write_bytes(wav(samples, RATE, format="FLAC"))
    assert np.array_equal(read(path), read(wav(samples, RATE)))
    assert len(read(sound_only(NOISE))) == RATE, "a video's file without images"


def test_memory_depends_on_the_segment(tmp_path: Path) -> None:
    """One second of ten minutes in 48 kHz stereo: a sparse file of 115 MB."""
    path, num = tmp_path / "long.wav", 600 * 48_000
    header = wav(np.zeros((1, 2)), 48_000)[:-4]
    with path.open("wb") as file:
        file.write(large_header(header, 4 * num))
        file.seek(len(header) + 4 * (num // 2))
        file.write((NOISE * 32767).astype("<i2").tobytes())
        file.truncate(len(header) + 4 * num)
    read(path)  # imports
    tracemalloc.start()
    segment = read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert segment.any()
    assert peak < 4 * 2**20


@pytest.mark.parametrize(("package", "extra"), [("soundfile", "sound"), ("av", "video")])
def test_a_missing_package_is_named(package: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content = wav(NOISE, RATE) if extra == "sound" else ramp_video(num_frames=3, sound=NOISE)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        DataError, match=rf'reading {extra} needs the package {package}.\n.*pip install "vitrail\[{extra}\]"'
    ):
        read(content)


def test_modalities() -> None:
    names = ("a/b.JPG", "b.png", "c.Wav", "d.flac", "e.MP4", "f.webm", "g.txt", "wav", ".wav")
    kinds = ("image", "image", "sound", "sound", "video", "video", None, None, None)
    assert tuple(map(modality_of, names)) == kinds
