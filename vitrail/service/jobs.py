"""The other end of a worker process: jobs come in on standard input, results go out on standard output."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Any

from vitrail.errors import VitrailError
from vitrail.frames import pack_frame, read_frame

Result = tuple[dict[str, Any], list[bytes]]


def run_jobs(open_worker: Callable[..., Any]) -> None:
    """Open the worker with the first frame's arguments, report its facts, then run jobs until the input ends."""
    warnings.filterwarnings("ignore", module=r"PIL\.")  # on large images and damaged EXIF, as in __main__
    for number in (signal.SIGINT, signal.SIGTERM):  # the service stops its worker after the last response
        signal.signal(number, signal.SIG_IGN)
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps what libraries print out of the results

    def send(result: Result) -> None:
        for part in pack_frame(*result):
            output.write(part)
        output.flush()

    first = read_frame(sys.stdin.buffer)
    if first is None:
        return
    try:
        worker = open_worker(**first[0])
    except VitrailError as error:
        send(({"error": [type(error).__name__, error.wrong, error.got, error.hint]}, []))
        return
    send(({"facts": worker.facts, "preprocess": worker.preprocess.model_dump_json()}, []))
    while (job := read_frame(sys.stdin.buffer)) is not None:
        document, contents = job
        send(getattr(worker, document.pop("verb"))(contents, **document))


def error_document(code: str, error: VitrailError) -> dict[str, Any]:
    """An error as clients get it."""
    return {"error": {"code": code, "message": f"{error.wrong} Got {error.got}".strip(), "hint": error.hint or None}}
