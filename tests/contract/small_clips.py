"""Small clips in memory: noise as WAV, and videos whose frames tell their number."""

from __future__ import annotations

import io
import tempfile
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import soundfile
from numpy.typing import NDArray
from PIL import Image

STEP = 4  # levels of grey from one frame of a ramp to the next


def wav(samples: NDArray[np.generic], rate: int, *, format: str = "WAV", subtype: str | None = None) -> bytes:
    """An encoded sound."""
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=format, subtype=subtype)
    return file.getvalue()


def noise_wav(number: int, *, rate: int = 16_000, seconds: float = 1.5) -> bytes:
    """Noise that no other number has."""
    return wav(np.random.default_rng(number).uniform(-0.5, 0.5, round(rate * seconds)), rate)


def grey_of(number: int) -> int:
    """The grey of a frame of a ramp; it starts again after 50 frames."""
    return 20 + STEP * (number % 50)


def ramp_video(
    *,
    num_frames: int = 50,
    rate: int = 10,
    size: tuple[int, int] = (32, 48),
    format: str = "mp4",
    gop: int = 12,
    sound: NDArray[np.float32] | None = None,
    sound_rate: int = 16_000,
    rotation: int = 0,
    movflags: str = "",
    codec: str = "mpeg4",
    still: bool = False,
) -> bytes:
    """A video whose frames are grey, each brighter than the one before; perhaps with a sound track."""
    with (
        tempfile.TemporaryDirectory() as folder,  # `faststart` opens the file again
        av.open(f"{folder}/clip", "w", format=format, options={"movflags": movflags} if movflags else {}) as container,
    ):
        stream = container.add_stream(codec, rate=rate)
        stream.height, stream.width = size
        stream.pix_fmt, stream.gop_size, stream.bit_rate = "yuv420p", gop, 2_000_000
        if rotation:
            stream.set_display_rotation(rotation)
        track = None
        if sound is not None:
            track = container.add_stream("pcm_s16le" if format != "mp4" else "aac", rate=sound_rate, layout="mono")
        container.start_encoding()
        for number in range(num_frames):
            pixels = np.full((*size, 3), grey_of(number), dtype=np.uint8)
            if rotation:
                pixels[: size[0] // 2] = 0  # so that one can see which side is up
            if still:
                pixels[:] = np.linspace(0, 255, size[1], dtype=np.uint8)[:, None]  # brighter to the right
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        if track is not None and sound is not None:
            _write_sound(container, track, sound, sound_rate)
        container.close()
        return Path(folder, "clip").read_bytes()


def _write_sound(container: av.container.OutputContainer, track: object, sound: NDArray, rate: int) -> None:
    samples = np.round(sound * 32767).astype(np.int16)
    for start in range(0, len(samples), 1024):
        frame = av.AudioFrame.from_ndarray(samples[None, start : start + 1024], format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = rate, start, Fraction(1, rate)
        container.mux(track.encode(frame))
    container.mux(track.encode())


def sound_only(sound: NDArray[np.float32], rate: int = 16_000) -> bytes:
    """A file of a video's format, but with sound only."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        track = container.add_stream("aac", rate=rate, layout="mono")
        _write_sound(container, track, sound, rate)
    return file.getvalue()


def greys(frames: NDArray[np.uint8]) -> list[int]:
    """The number of each frame of a ramp, by its grey."""
    return [round((float(frame.mean()) - 20) / STEP) for frame in frames]


def write_media(folder: Path) -> None:
    """The clips of the documents' commands: spoken words, videos, and a table of images, sounds and words."""
    random = np.random.default_rng(0)
    rows = ["image,sound,text,label,split"]
    for number in range(36):
        split, name = ("train", "val", "test")[number % 3], ("seven", "eight")[number // 3 % 2]
        path = folder / "words" / split / name / f"{number}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(noise_wav(number, rate=8000, seconds=0.4))
        video = folder / "clips" / split / name / f"{number}.mp4"
        video.parent.mkdir(parents=True, exist_ok=True)
        video.write_bytes(ramp_video(num_frames=8 + number % 3))
        image = folder / "numbers" / f"{number}.png"
        image.parent.mkdir(exist_ok=True)
        Image.fromarray(random.integers(0, 256, (28, 28), dtype=np.uint8)).save(image)
        rows.append(f"numbers/{number}.png,{path.relative_to(folder)},{name},{name},{split}")
    (folder / "digits.csv").write_text("\n".join(rows) + "\n")
    (folder / "word.wav").write_bytes(noise_wav(0, rate=8000, seconds=0.4))
    (folder / "clip.mp4").write_bytes(ramp_video(num_frames=9))
