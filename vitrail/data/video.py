"""The one reader of video: a few frames of a clip, or a part of its sound track, decoded by FFmpeg through PyAV.

FFmpeg is given an open file and a list of containers, so that no file can make it open another one or an address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.data.decode import MAX_PIXELS, Pixels, check_size
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
from vitrail.errors import DataError

CONTAINERS = "mov,mp4,m4a,3gp,3g2,mj2,avi,matroska,webm,mpeg,mpegts,mpegvideo"
FORMATS_HINT = "MP4, MOV, AVI, MKV, WebM or MPEG."
MAX_SECONDS = 4 * 3600.0
MAX_FRAMES = 20_000  # decoded for one request
MAX_DECODED_PIXELS = 20_000_000_000  # likewise: about a minute of one core
MAX_PACKETS = 500_000  # read for one request, those of other streams included
EARLIER = (0.0, 10.0, 60.0)  # seconds before the start to seek to, one after the other until a keyframe is found there
WARM_UP = 0.25  # seconds of sound that are decoded before a segment, because each packet is decoded with the one before
SLACK = 0.25  # seconds by which a stream may end before its header says so
JUMP = 0.05  # seconds by which timestamps of sound may be off before they count
SLACK_RATE = 0.02  # likewise, as a fraction of its length
EPSILON = 1e-4
DEFAULT_RATE = 25.0  # frames per second of a file that does not say


class VideoInfo(NamedTuple):
    """What the header of a video says."""

    seconds: float
    rate: float
    """Frames per second, on average."""
    size: tuple[int, int]
    """Rows and columns, before any rotation."""
    has_sound: bool


def is_video(start: bytes) -> bool:
    """Whether a file that begins like this is of a known container."""
    return (
        start[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot")
        or (start[:4] == b"RIFF" and start[8:11] == b"AVI")
        or start[:4] in (b"\x1aE\xdf\xa3", b"\x00\x00\x01\xba", b"\x00\x00\x01\xb3")
        or start[:1] == start[188:189] == b"G"  # the packets of an MPEG transport stream
    )


def video_info(content: MediaContent, *, name: str) -> VideoInfo:
    """The length, frame rate and size of a video, from its header."""
    with _open_container(content, name) as container:
        stream = _video_stream(container, name)
        seconds = _header_seconds(container, stream)
        info = VideoInfo(
            seconds=_scan_seconds(content, name) if seconds is None else seconds,
            rate=float(stream.average_rate or stream.guessed_rate or DEFAULT_RATE),
            size=(stream.height, stream.width),
            has_sound=bool(container.streams.audio),
        )
    if info.seconds > MAX_SECONDS:
        got, hint = (
            f"{info.seconds / 3600:,.1f} hours.",
            f"cutting it into clips of at most {MAX_SECONDS / 3600:.0f} hours.",
        )
        raise DataError(f"{name} is too long.", got=got, hint=hint)
    return info


def read_frames(
    content: MediaContent, *, rate: float, start: Start, num: int, resize: Callable[[Pixels], Pixels], name: str
) -> NDArray[np.uint8]:
    """This many frames, `rate` of them per second, as [T Y X 3]; a clip that ends earlier repeats its last frame.

    `start` None takes them from the middle. Each frame is resized as soon as it is decoded.
    """
    info = video_info(content, name=name)
    middle = info.seconds / 2 - (num - 1) / 2 / rate
    begin = middle if start is None else start(info.seconds) if callable(start) else start
    times = max(0.0, begin) + np.arange(num) / rate
    starts = [float(times[0]) - earlier for earlier in EARLIER]
    for seek in (*(each for each in starts if each > 0), None):
        with _open_container(content, name) as container:
            stream = _video_stream(container, name)
            frames = _decode(container, stream, seek, name)
            promised = info.seconds if _states_length(container, stream) else 0.0
            shown = list(_frames_at(frames, times, promised, name, resize=resize, may_start_late=seek is None))
        if shown:
            break
    return np.stack(shown)


def _frames_at(
    frames: Iterator[tuple[float, float, Any]],
    times: NDArray[np.float64],
    promised: float,
    name: str,
    *,
    resize: Callable[[Pixels], Pixels],
    may_start_late: bool,
) -> Iterator[Pixels]:
    """The frame that is shown at each of these times; none if the first one that can be decoded comes too late."""
    latest, pixels, end, done = None, None, 0.0, 0
    for time, duration, frame in frames:
        if latest is None and time > times[0] + EPSILON and not may_start_late:
            return
        while latest is not None and done < len(times) and times[done] < time - EPSILON:
            pixels = _to_pixels(latest, resize, name) if pixels is None else pixels
            yield pixels
            done += 1
        if done == len(times):
            return
        latest, pixels, end = frame, None, time + duration
    if latest is None:
        if may_start_late:
            raise _no_frames(name)
        return
    if end + SLACK + SLACK_RATE * promised < min(float(times[-1]), promised):
        raise damaged_clip(name, f"a video that ends after {end:.1f} of {promised:.1f} seconds.")
    pixels = _to_pixels(latest, resize, name) if pixels is None else pixels
    for _ in range(len(times) - done):
        yield pixels


def _decode(container: Any, stream: Any, seek: float | None, name: str) -> Iterator[tuple[float, float, Any]]:
    """The frames from the last keyframe before `seek`, or all of them: time, duration and the frame itself."""
    usual = 1.0 / float(stream.average_rate or stream.guessed_rate or DEFAULT_RATE)
    num_frames = num_pixels = 0
    time = -usual
    for frame in _decoded(container, stream, seek, name):
        num_frames, num_pixels = num_frames + 1, num_pixels + frame.width * frame.height
        if num_frames > MAX_FRAMES or num_pixels > MAX_DECODED_PIXELS:
            raise _too_much(name, f"more than {num_frames - 1:,} frames to decode")
        stamp = _stamp(frame, stream)
        time = time + usual if stamp is None else max(time, stamp)
        yield time, float(frame.duration * stream.time_base) if frame.duration else usual, frame


def _decoded(container: Any, stream: Any, seek: float | None, name: str) -> Iterator[Any]:
    """The frames of a stream of images or sound, from the packet to which FFmpeg seeks."""
    import av

    stream.codec_context.thread_count = 1  # the loader's threads run side by side
    if seek is not None:
        try:
            container.seek((stream.start_time or 0) + int(seek / stream.time_base), stream=stream)
        except av.error.FFmpegError:  # without an index; the caller starts from the beginning
            return
    for number, packet in enumerate(container.demux(stream)):
        if number > MAX_PACKETS:
            raise _too_much(name, f"more than {MAX_PACKETS:,} packets")
        yield from packet.decode()


def _stamp(frame: Any, stream: Any) -> float | None:
    """When a frame is shown, in seconds from the start of its stream; None if the file does not say."""
    stamp = frame.dts if frame.pts is None else frame.pts
    return None if stamp is None else float((stamp - (stream.start_time or 0)) * stream.time_base)


def _to_pixels(frame: Any, resize: Callable[[Pixels], Pixels], name: str) -> Pixels:
    """A frame in RGB, upright and resized."""
    if frame.is_corrupt:
        raise damaged_clip(name, "a frame with errors in it.")
    check_size(frame.height, frame.width, name)
    pixels = frame.to_ndarray(format="rgb24", threads=1)
    return resize(np.ascontiguousarray(np.rot90(pixels, round(frame.rotation / 90))))


@contextmanager
def _open_container(content: MediaContent, name: str) -> Iterator[Any]:
    """An open container; FFmpeg's errors become messages."""
    try:
        import av
    except ImportError:
        raise missing_package("av", "video") from None
    with open_media(content, name) as file:
        start = first_bytes(file)
        if not is_video(start):
            raise not_readable(name, "video", start, FORMATS_HINT)
        try:
            # Real files have tags that are not UTF-8.
            options = {"format_whitelist": CONTAINERS}
            with av.open(file, container_options=options, metadata_errors="replace") as container:
                yield container
        except (av.error.FFmpegError, OverflowError) as error:
            raise damaged_clip(name, decoder_message(error)) from None


def _video_stream(container: Any, name: str) -> Any:
    """The stream of images, of a size within the limits."""
    from av.stream import Disposition

    streams = [each for each in container.streams.video if not each.disposition & Disposition.attached_pic]
    if not streams:
        if not container.streams.audio:
            raise damaged_clip(name, "a file without images and sound.")
        raise DataError(f"{name} has no video in it.", got="a file with sound only.", hint="leaving it out.")
    stream = streams[0]
    if stream.codec_context is None:
        raise DataError(
            f"{name} has a video that FFmpeg cannot decode.", got="an unknown codec.", hint="encoding it again."
        )
    check_size(stream.height, stream.width, name)
    stream.codec_context.options = {"max_pixels": str(MAX_PIXELS)}  # for streams that change their size
    return stream


def _header_seconds(container: Any, stream: Any) -> float | None:
    """The length of a stream, or else of its container; None if neither is stated."""
    import av

    if stream.duration and stream.duration > 0:
        return float(stream.duration * stream.time_base)
    return container.duration / av.time_base if container.duration and container.duration > 0 else None


def _states_length(container: Any, stream: Any) -> bool:
    """Whether the header states this stream's own length: that of a container may be the other stream's."""
    return bool(stream.duration) or len(container.streams) == 1


def _scan_seconds(content: MediaContent, name: str) -> float:
    """The length of a video by the timestamps of its packets, for files that do not state it."""
    last, num = 0.0, 0
    with _open_container(content, name) as container:
        stream = _video_stream(container, name)
        for num, packet in enumerate(container.demux(stream)):
            if num > MAX_PACKETS:
                raise _too_much(name, f"more than {MAX_PACKETS:,} packets")
            last = max(last, _stamp(packet, stream) or 0.0)
        usual = 1.0 / float(stream.average_rate or stream.guessed_rate or DEFAULT_RATE)
    if not num:
        raise _no_frames(name)
    return last + usual


@contextmanager
def open_track(content: MediaContent, name: str) -> Iterator[SoundTrack]:
    """The sound track of a video."""
    with _open_container(content, name) as container:
        stream = _sound_stream(container, name)
        context = stream.codec_context
        seconds = _header_seconds(container, stream) or 0.0
        info = SoundInfo(context.sample_rate, round(seconds * context.sample_rate), context.channels)
        promised = info.num_samples if _states_length(container, stream) else 0
    check_sound(info, name, max_seconds=MAX_SECONDS)
    yield SoundTrack(content, info, promised, name)


class SoundTrack:
    """The sound track of a video, of which parts can be read."""

    def __init__(self, content: MediaContent, info: SoundInfo, promised: int, name: str) -> None:
        self.content, self.info, self.promised, self.name = content, info, promised, name

    def read(self, first: int, num: int) -> NDArray[np.float32]:
        """These samples as mono."""
        rate, mono, place = self.info.rate, np.zeros(num, dtype=np.float32), None
        seek = first / rate - WARM_UP
        with _open_container(self.content, self.name) as container:
            stream = _sound_stream(container, self.name)
            for frame in _decoded(container, stream, seek if seek > 0 else None, self.name):
                samples, stamp = self._to_mono(frame), _stamp(frame, stream)
                # Timestamps in milliseconds would leave gaps: they count only where they jump.
                stated = None if stamp is None else round(stamp * rate)
                if stated is not None and (place is None or abs(stated - place) > JUMP * rate):
                    place = stated
                place = place or 0
                begin, end = max(place, first), min(place + len(samples), first + num)
                if end > begin:
                    mono[begin - first : end - first] = samples[begin - place : end - place]
                place += len(samples)
                if place >= first + num:
                    break
        slack = SLACK * rate + SLACK_RATE * self.promised
        if place is None or place + slack < min(first + num, self.promised):
            raise damaged_clip(self.name, f"a sound track that ends after {(place or 0) / rate:.1f} seconds.")
        return mono

    def _to_mono(self, frame: Any) -> NDArray[np.float32]:
        """The mean of the channels, between -1 and 1."""
        if frame.is_corrupt or frame.sample_rate != self.info.rate:
            raise damaged_clip(self.name, "a sound track with errors in it.")
        samples = frame.to_ndarray()
        if not frame.format.is_planar:
            samples = samples.reshape(-1, frame.layout.nb_channels).T
        mono = samples.mean(axis=0, dtype=np.float64)
        if samples.dtype == np.uint8:
            mono = (mono - 128.0) / 128.0
        elif samples.dtype.kind == "i":
            mono /= float(2 ** (8 * samples.dtype.itemsize - 1))
        return mono.astype(np.float32)


def _sound_stream(container: Any, name: str) -> Any:
    if not container.streams:
        raise damaged_clip(name, "a file without images and sound.")
    if not container.streams.audio:
        raise DataError(f"{name} has no sound.", got="a video without a sound track.", hint="leaving it out.")
    stream = container.streams.audio[0]
    if stream.codec_context is None:
        raise DataError(
            f"{name} has sound that FFmpeg cannot decode.", got="an unknown codec.", hint="encoding it again."
        )
    return stream


def _no_frames(name: str) -> DataError:
    return DataError(f"{name} has no frames.", got="a video without images.", hint="leaving it out.")


def _too_much(name: str, got: str) -> DataError:
    """The error for a file that would keep the decoder busy for minutes."""
    return DataError(
        f"{name} takes too long to decode.", got=f"{got}.", hint="encoding it again with a keyframe every few seconds."
    )
