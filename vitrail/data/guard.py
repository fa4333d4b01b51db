"""Decodes in processes that can be ended: for images whose cost their headers cannot bound (decode_budget.py).

Guards start on first use and stay. One that takes too long, takes too much memory or crashes is replaced, and its image
becomes an error. They end with this process, whose end closes their input.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from io import BufferedReader
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from vitrail.data.decode_budget import too_costly
from vitrail.errors import DataError
from vitrail.frames import pack_frame, read_frame

MAX_SECONDS = 1.5  # of processor time for an image
PATIENCE = 4.0  # times as long on the clock, since the machine may be busy
MAX_GUARDS = 2
SIGPROF = getattr(signal, "SIGPROF", None)  # which the guard's timer sends
Answer = tuple[NDArray[np.uint8], dict[str, Any]]


def run_guarded(job: dict[str, Any], content: bytes) -> Answer:
    """Run a task of guard_process.py on an encoded image: its pixels, and what else it answers."""
    with _pool(os.getpid()).guard() as guard:
        answer = guard.run({**job, "seconds": MAX_SECONDS}, content)
    if answer is None:
        raise _ended(job["name"], guard.returncode)
    document, pixels = answer
    if "error" in document:
        raise _rebuild_error(*document["error"])
    return pixels, document


def _ended(name: str, returncode: int) -> DataError:
    if returncode in (-signal.SIGTERM, *(() if SIGPROF is None else (-SIGPROF,))):
        return too_costly(name, f"no result after {MAX_SECONDS:g} s of processor time")
    return DataError(f"{name} crashes the decoder.", got=f"exit code {returncode}.", hint="re-saving it.")


def _rebuild_error(kind: str, wrong: str, got: str, hint: str) -> Exception:
    """The error that a guard caught: ours, or one of Pillow's that say what the file is."""
    if kind == "DataError":
        return DataError(wrong, got=got, hint=hint)
    kinds = {error.__name__: error for error in (UnidentifiedImageError, Image.DecompressionBombError)}
    return kinds.get(kind, ValueError)(wrong)


class _Guard:
    def __init__(self) -> None:
        # The folder that Python runs in is not searched for modules, unless this process does so too.
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # noqa: PTH109
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "vitrail.data.guard_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )
        assert self.process.stdout is not None
        read_frame(cast("BinaryIO", self.process.stdout))  # ready: its start does not count

    @property
    def returncode(self) -> int:
        return self.process.wait()

    def run(self, job: dict[str, Any], content: bytes) -> tuple[dict[str, Any], NDArray[np.uint8]] | None:
        """The answer and its pixels; None if the guard ended, which it then has."""
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(PATIENCE * job["seconds"], process.terminate)
        timer.start()
        try:
            with suppress(OSError):  # it ended before it had read everything
                process.stdin.writelines(pack_frame(job, [content]))
                process.stdin.flush()
            frame = read_frame(cast("BinaryIO", process.stdout))
            if frame is not None:
                pixels = np.empty(frame[0].pop("shape", (0,)), dtype=np.uint8)
                if cast("BufferedReader", process.stdout).readinto(pixels.data.cast("B")) == pixels.nbytes:
                    return frame[0], pixels
        finally:
            timer.cancel()
            timer.join()
        self.close()
        return None

    def close(self) -> None:
        """End the process, if it has not ended by itself."""
        self.process.kill()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdout.close()
        with suppress(OSError):  # what it did not read
            self.process.stdin.close()
        self.process.wait()


class _Pool:
    def __init__(self) -> None:
        self._idle: list[_Guard] = []
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(MAX_GUARDS)
        atexit.register(self.close)

    @contextmanager
    def guard(self) -> Iterator[_Guard]:
        """A guard that nobody else uses meanwhile; it goes back unless it has ended."""
        with self._slots:
            with self._lock:
                guard = self._idle.pop() if self._idle else None
            guard = guard or _Guard()
            try:
                yield guard
            except BaseException:  # interrupted: its answer would be taken for that of the next job
                guard.close()
                raise
            if guard.process.poll() is None:
                with self._lock:
                    self._idle.append(guard)

    def close(self) -> None:
        """End all guards."""
        with self._lock:
            while self._idle:
                self._idle.pop().close()


@cache
def _pool(pid: int) -> _Pool:  # noqa: ARG001 - a forked process has no guards of its parent's
    return _Pool()
