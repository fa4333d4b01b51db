"""Video: the right frames of the right part, in little memory; each bad file is named, with one message."""

from __future__ import annotations

import os
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from tests.contract.small_clips import grey_of, greys, ramp_video, sound_only
from vitrail.data import video
from vitrail.data.decode import Pixels
from vitrail.data.media import MediaContent
from vitrail.data.video import VideoInfo, read_frames, video_info
from vitrail.errors import DataError

FORMATS = ("mp4", "mov", "avi", "matroska")
NOISE = np.random.default_rng(0).uniform(-0.5, 0.5, 32_000).astype(np.float32)


def unchanged(pixels: Pixels) -> Pixels:
    return pixels


def read(content: MediaContent, *, rate: float = 5.0, start: float | None = None, num: int = 4) -> np.ndarray:
    return read_frames(content, rate=rate, start=start, num=num, resize=unchanged, name="wave.mp4")


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("gop", [1, 12, 300])
def test_frames_by_time(format: str, gop: int) -> None:
    clip = ramp_video(format=format, gop=gop)
    assert video_info(clip, name="wave") == VideoInfo(5.0, 10.0, (32, 48), has_sound=False)
    assert greys(read(clip)) == [22, 24, 26, 28], "around the middle"
    assert greys(read(clip, start=0.0)) == [0, 2, 4, 6]
    assert greys(read(clip, start=3.3)) == [33, 35, 37, 39]
    assert greys(read(clip, start=-5.0, num=2)) == [0, 2]
    assert greys(read(clip, start=4.6)) == [46, 48, 49, 49], "the last frame is repeated"
    assert greys(read(clip, start=1.0, rate=20.0)) == [10, 10, 11, 11], "a higher rate repeats frames"
    assert greys(read(clip, num=100))[::20] == [0, 40, 49, 49, 49]
    assert read(clip).shape == (4, 32, 48, 3)


def test_mpeg_without_an_index() -> None:
    """Its timestamps are those of groups of frames: the others may be off by one."""
    clip = ramp_video(format="mpeg", codec="mpeg2video", rate=25)
    assert np.abs(np.array(greys(read(clip, start=1.0))) - [25, 30, 35, 40]).max() <= 1


def test_a_fragmented_video() -> None:
    clip = ramp_video(movflags="frag_keyframe+empty_moov")
    assert greys(read(clip, start=3.3)) == [33, 35, 37, 39]
    assert video_info(clip, name="wave").seconds == pytest.approx(5.0, abs=0.11)


def test_a_single_frame() -> None:
    clip = ramp_video(num_frames=1)
    assert greys(read(clip)) == [0, 0, 0, 0]
    assert greys(read(clip, start=9.0)) == [0, 0, 0, 0]


def test_a_function_chooses_the_start() -> None:
    clip = ramp_video()
    frames = read_frames(clip, rate=5.0, start=lambda seconds: seconds - 1, num=2, resize=unchanged, name="wave.mp4")
    assert greys(frames) == [40, 42]


@pytest.mark.parametrize(("rotation", "dark"), [(90, "left"), (-90, "right"), (180, "bottom")])
def test_rotation_is_applied(rotation: int, dark: str) -> None:
    """The upper half of the stored frames is black."""
    frame = read(ramp_video(num_frames=3, rotation=rotation), num=1)[0]
    assert frame.shape[:2] == ((32, 48) if rotation == 180 else (48, 32))
    rows, columns = frame.shape[:2]
    halves = {
        "left": frame[:, : columns // 2 - 2],
        "right": frame[:, columns // 2 + 2 :],
        "bottom": frame[rows // 2 + 2 :],
    }
    assert halves[dark].mean() < 5
    assert frame.mean() > 8


@pytest.mark.data
def test_real_videos(data_dir: Path) -> None:
    """Ten clips from three data sets; one has tags that are not UTF-8."""
    paths = sorted((data_dir / "video").iterdir())
    assert len(paths) == 10
    for path in paths:
        info = video_info(path, name=path.name)
        assert 1 < info.seconds < 12
        assert round(info.rate) == 30
        frames = read_frames(path, rate=info.rate, start=0.0, num=60, resize=unchanged, name=path.name)
        assert frames.shape == (60, *info.size, 3)
        part = read_frames(path, rate=info.rate, start=40 / info.rate, num=5, resize=unchanged, name=path.name)
        assert np.array_equal(part, frames[40:45]), "by seeking"
        some = read_frames(path.read_bytes(), rate=5.0, start=None, num=8, resize=unchanged, name=path.name)
        assert len({frame.tobytes() for frame in some}) > 1


def half(content: bytes, fraction: float = 0.5) -> bytes:
    return content[: int(fraction * len(content))]


BAD = {
    "an empty file": (b"", "is empty"),
    "a text": (b"Good morning, this is a text", "is not a video that Vitrail can read"),
    "a GIF": (b"GIF89a" + bytes(300), "is not a video that Vitrail can read"),
    "a playlist": (b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", "is not a video that Vitrail can read"),
    "half an MP4": (half(ramp_video()), "is damaged or truncated"),
    "half a streamed MP4": (half(ramp_video(movflags="faststart")), "is damaged or truncated"),
    "half an MKV": (half(ramp_video(format="matroska"), 0.3), "is damaged or truncated"),
    "a header alone": (b"\x00\x00\x00\x1cftypisom" + bytes(16), "is damaged or truncated"),
    "sound alone": (sound_only(NOISE), "has no video in it.\n.*a file with sound only"),
    "no frames": (ramp_video(num_frames=0, format="avi"), "has no frames"),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("as_file", [True, False])
def test_a_bad_file_is_named(kind: str, as_file: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    content, message = BAD[kind]
    path = tmp_path / "wave.mp4"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"wave\.mp4 {message}"):
        read(path if as_file else content)
    assert capfd.readouterr() == ("", ""), "FFmpeg prints nothing"


def test_damaged_frames_are_noticed() -> None:
    clip = bytearray(ramp_video(gop=300, size=(64, 96)))
    start = clip.index(b"mdat")
    clip[start + 600 : start + 3_000] = np.random.default_rng(0).bytes(2_400)
    with pytest.raises(DataError, match="is damaged or truncated"):
        read(bytes(clip), num=20)


@pytest.mark.data
def test_one_damaged_byte_of_a_real_video(data_dir: Path) -> None:
    """FFmpeg repairs the frame as well as it can, and says so."""
    clip = bytearray((data_dir / "video" / "SOX5yA1l24A.mp4").read_bytes())
    clip[300_000] ^= 0xFF
    with pytest.raises(DataError, match=r"wave\.mp4 is damaged or truncated.\n.*a frame with errors in it"):
        read(bytes(clip), num=8)


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="is not a regular file"):
        video_info(tmp_path / "pipe", name="pipe")


@pytest.mark.parametrize(
    ("limit", "value", "message"),
    [
        ("MAX_SECONDS", 4.0, "is too long"),
        ("MAX_FRAMES", 5, r"takes too long to decode.\n.*more than 5 frames to decode"),
        ("MAX_DECODED_PIXELS", 32 * 48 * 5, r"takes too long to decode.\n.*more than 5 frames to decode"),
        ("MAX_PACKETS", 5, r"takes too long to decode.\n.*more than 5 packets"),
    ],
)
def test_limits(limit: str, value: float, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clip = ramp_video(gop=300)
    monkeypatch.setattr(video, limit, value)
    with pytest.raises(DataError, match=rf"wave\.mp4 {message}"):
        read(clip)


def test_frames_that_start_too_late_are_left_to_an_earlier_keyframe() -> None:
    frames = [(2.0, 0.1, object()), (2.1, 0.1, object())]
    late = video._frames_at(iter(frames), np.array([1.0, 1.2]), 5.0, "wave.mp4", resize=unchanged, may_start_late=False)
    assert list(late) == []


def test_large_frames_are_refused_before_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "_decoded", None)
    with pytest.raises(DataError, match=r"wave\.mp4 is too large to decode.\n.*16400 x 16 pixels"):
        read(ramp_video(num_frames=1, size=(16, 16_400), format="matroska", codec="rawvideo"))


def test_a_long_video_in_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight frames from the middle of two hours, between keyframes that are ten minutes apart."""
    clip = ramp_video(num_frames=7_200, rate=1, gop=600, size=(16, 16), format="avi")
    decoded = 0
    stamp = video._stamp

    def count(*args: object) -> float | None:
        nonlocal decoded
        decoded += 1
        return stamp(*args)

    monkeypatch.setattr(video, "_stamp", count)
    assert video_info(clip, name="wave").seconds == 7_200
    read(clip, rate=1.0, num=8)
    decoded = 0
    tracemalloc.start()
    frames = read(clip, rate=1.0, num=8)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert greys(frames) == [number % 50 for number in range(3_596, 3_604)]
    assert decoded < 620, "the decoder starts at a keyframe"
    assert peak < 2**20
    assert grey_of(3_596) == grey_of(46)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    clip = ramp_video(num_frames=3)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(DataError, match=r'reading video needs the package av.\n.*pip install "vitrail\[video\]"'):
        read(clip)
