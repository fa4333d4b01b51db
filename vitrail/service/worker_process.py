"""The service's handle on a worker process: start it, send it jobs, restart it when it crashes or hangs."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

from vitrail import errors
from vitrail.frames import Frame, receive_frame, send_frame
from vitrail.service.limits import REQUEST_TIMEOUT, ApiError

logger = logging.getLogger("vitrail.service")
MAX_BACKOFF = 30.0  # seconds between two attempts to start
MAX_LOG_BYTES = 4096


class WorkerCrashedError(Exception):
    """The worker exited, or had to be killed, during a job."""


class WorkerProcess:
    """One worker, which runs jobs one at a time."""

    def __init__(self, module: str, arguments: dict[str, Any] | None = None) -> None:
        self.module = module
        self.arguments = arguments or {}
        self.facts: dict[str, Any] = {}
        self.preprocess = ""
        """The model's preprocessing, as JSON."""
        self.restarts = 0
        self.ready = False
        self._process: Process | None = None
        self._job_lock = asyncio.Lock()
        self._start_lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def start(self) -> None:
        """Start the worker and wait until its model is loaded and warm; raise the error if loading fails."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            self.module,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=_worker_env(),
            start_new_session=True,  # Ctrl-C goes to the service, which stops the worker after the last response
        )
        self._process = process
        self._spawn(_log_stderr(process))
        try:
            document, _ = await _exchange(process, self.arguments, ())
        except (asyncio.IncompleteReadError, OSError):
            raise WorkerCrashedError from None
        if "error" in document:
            await process.wait()
            kind, wrong, got, hint = document["error"]
            raise getattr(errors, kind)(wrong, got=got, hint=hint)
        self.facts, self.preprocess, self.ready = document["facts"], document["preprocess"], True
        self._spawn(self._watch(process))

    async def ensure_started(self) -> None:
        """Start the worker on the first call; concurrent callers wait."""
        async with self._start_lock:
            if self._process is None:  # shielded: loading continues if the caller is cancelled
                await asyncio.shield(self._spawn(self._first_start()))

    def start_soon(self) -> None:
        """Start the worker in the background."""
        self._spawn(self.ensure_started())

    async def _first_start(self) -> None:
        try:
            await self.start()
        except BaseException:
            process, self._process = self._process, None
            if process is not None:
                await _terminate(process, seconds=0.0)
            raise

    async def call(self, verb: str, contents: Sequence[bytes], **options: Any) -> Frame:
        """Run one job. A caller cancelled while waiting sends no job; cancelled later, its result is discarded."""
        await self._job_lock.acquire()
        job = self._spawn(self._run_job({"verb": verb, **options}, contents))
        return await asyncio.shield(job)

    async def _run_job(self, document: dict[str, Any], contents: Sequence[bytes]) -> Frame:
        process = self._process
        try:
            if not self.ready or process is None:
                raise ApiError("starting", "the model is loading.", "again in a moment.", retry_after=2)
            async with asyncio.timeout(REQUEST_TIMEOUT):
                return await _exchange(process, document, contents)
        except (asyncio.IncompleteReadError, OSError):  # includes TimeoutError
            assert process is not None
            await self._on_lost(process)
            raise WorkerCrashedError from None
        finally:
            self._job_lock.release()

    async def close(self, *, seconds: float = 5.0) -> None:
        """Stop the worker; kill it if it has not exited after so many seconds."""
        self.ready, self._closed = False, True
        if self._process is not None:
            await _terminate(self._process, seconds=seconds)
        for task in self._tasks:
            task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task that survives the cancellation of its caller; only a caller that awaits it sees its errors."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._discard)
        return task

    def _discard(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    async def _watch(self, process: Process) -> None:
        """Restart a worker that exits while idle."""
        await process.wait()
        await self._on_lost(process)

    async def _on_lost(self, process: Process) -> None:
        if process is not self._process or not self.ready:
            return
        self.ready = False
        await _terminate(process, seconds=0.0)
        logger.error("worker lost", extra={"facts": {"code": process.returncode}})
        self._spawn(self._restart())

    async def _restart(self) -> None:
        backoff = 0.0
        while not self.ready and not self._closed:
            await asyncio.sleep(backoff)
            backoff = min(MAX_BACKOFF, 2 * backoff + 1)
            self.restarts += 1
            try:
                await self.start()
            except (WorkerCrashedError, errors.VitrailError, OSError) as error:
                logger.error("worker restart failed", extra={"facts": {"kind": type(error).__name__}})  # noqa: TRY400
            else:
                logger.info("worker restarted", extra={"facts": {"restarts": self.restarts}})


def _worker_env() -> dict[str, str]:
    """As __main__ sets it, for callers of the Python API: waiting threads must not spin on cores that others need."""
    return {**({} if "OMP_WAIT_POLICY" in os.environ else {"GOMP_SPINCOUNT": "1000"}), **os.environ}


async def _exchange(process: Process, document: dict[str, Any], contents: Sequence[bytes]) -> Frame:
    assert process.stdin is not None
    assert process.stdout is not None
    await send_frame(process.stdin, document, contents)
    return await receive_frame(process.stdout)


async def _log_stderr(process: Process) -> None:
    """Log what the worker prints, such as warnings of libraries and tracebacks of crashes."""
    assert process.stderr is not None
    while text := await process.stderr.read(MAX_LOG_BYTES):
        logger.warning("worker output", extra={"facts": {"text": text.decode("utf-8", "replace").rstrip()}})


async def _terminate(process: Process, *, seconds: float) -> None:
    """Close the worker's input, which ends it; kill it if it has not exited in time."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(seconds):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
