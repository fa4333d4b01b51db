"""The process that decodes what may take forever, within limits on time and memory (guard.py starts it)."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vitrail.data.decode import Pixels, decode_here
from vitrail.data.strict_decode import decode_strictly_here
from vitrail.errors import DataError
from vitrail.frames import pack_frame, read_frame

MEMORY = 320 * 2**20  # bytes, beside the encoded image: 40 megapixels as Pillow holds them, and as a result


def decode(content: bytes, *, name: str, mode: Any, background: Any, targets: list[list[int]]) -> Any:
    """As `decode_image`; `targets` are rows, columns and what they will be resized to."""
    sizes = {(rows, columns): (to_rows, to_columns) for rows, columns, to_rows, to_columns in targets}
    target_size = (lambda rows, columns: sizes.get((rows, columns), (rows, columns))) if sizes else None
    pixels = decode_here(content, name=name, mode=mode, background=tuple(background), target_size=target_size)
    return pixels, {}


def strict(content: bytes, *, name: str) -> tuple[Pixels, dict[str, Any]]:
    """As `decode_strictly`."""
    decoded = decode_strictly_here(content, name)
    document = decoded._asdict()
    return document.pop("pixels"), document


TASKS: dict[str, Callable[..., tuple[Pixels, dict[str, Any]]]] = {"decode": decode, "strict": strict}


def main() -> None:
    """Run jobs until the input ends."""
    warnings.filterwarnings("ignore", module=r"PIL\.")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _send(output, {}, None)
    while (frame := read_frame(sys.stdin.buffer)) is not None:
        job, contents = frame
        task = TASKS[job.pop("task")]
        _limit(job.pop("seconds"), len(contents[0]))
        pixels: Pixels | None = None
        try:
            pixels, document = task(contents.pop(), **job)
        except Exception as error:  # noqa: BLE001 - the caller raises it
            ours = (error.wrong, error.got, error.hint) if isinstance(error, DataError) else (str(error), "", "")
            document = {"error": [type(error).__name__, *ours]}
        _limit(0.0, 0)
        _send(output, document, pixels)


def _send(output: Any, document: dict[str, Any], pixels: Pixels | None) -> None:
    for part in pack_frame(document if pixels is None else {**document, "shape": pixels.shape}):
        output.write(part)
    if pixels is not None:
        output.write(pixels.data.cast("B"))
    output.flush()


def _limit(seconds: float, size: int) -> None:
    """End this process after so much processor time, and let it use so much more memory; 0 for no limit."""
    try:
        import resource
    except ImportError:  # not on every system; there is still the clock of guard.py
        return
    signal.setitimer(signal.ITIMER_PROF, seconds)
    allowed = resource.RLIM_INFINITY if not size else _address_space(resource.getpagesize()) + size + MEMORY
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (allowed if hard == resource.RLIM_INFINITY else hard, hard))


def _address_space(page: int) -> int:
    """The bytes that this process has mapped; where that cannot be known, more than any limit."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * page
    except OSError:
        return 2**40


if __name__ == "__main__":
    main()
