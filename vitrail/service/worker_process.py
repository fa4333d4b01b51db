"""The service's side of its worker process: started, asked, and replaced when it crashes or hangs."""

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
from vitrail.service.frames import Frame, receive_frame, send_frame
from vitrail.service.limits import REQUEST_SECONDS, Refusal

logger = logging.getLogger("vitrail.service")
LONGEST_PAUSE = 30.0  # seconds between two attempts to start
LONGEST_REMARK = 4096  # bytes


class CrashedError(Exception):
    """The worker ended, or had to be ended, while it worked on a job."""


class WorkerProcess:
    """One worker, which takes jobs one after the other."""

    def __init__(self, model: str, weights: str | None) -> None:
        self.asked = {"model": model, "weights": weights}
        self.facts: dict[str, Any] = {}
        self.restarts = 0
        self.ready = False
        self._process: Process | None = None
        self._turn = asyncio.Lock()
        self._opening = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def start(self) -> None:
        """Start the worker and wait until its model is open and warm; what is wrong with the model is raised."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "vitrail.service.worker",
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=_environment(),
            start_new_session=True,  # a Ctrl-C is for the service, which tells its worker when the last answer is given
        )
        self._process = process
        self._begin(_retell(process))
        try:
            document, _ = await _exchange(process, self.asked, ())
        except (asyncio.IncompleteReadError, OSError):
            raise CrashedError from None
        if "wrong" in document:
            await process.wait()
            kind, wrong, got, hint = document["wrong"]
            raise getattr(errors, kind)(wrong, got=got, hint=hint)
        self.facts, self.ready = document["facts"], True
        self._begin(self._watch(process))

    async def start_once(self) -> None:
        """Start the worker if nobody has; the others wait until it is there."""
        async with self._opening:
            if self._process is None:  # it goes on being opened if whoever asked for it leaves
                await asyncio.shield(self._begin(self._first_start()))

    async def _first_start(self) -> None:
        try:
            await self.start()
        except BaseException:
            process, self._process = self._process, None
            if process is not None:
                await _end(process, seconds=0.0)
            raise

    async def call(self, verb: str, contents: Sequence[bytes], **asked: Any) -> Frame:
        """The answer to one job. Who is cancelled before its turn has no job; after that, its answer is thrown away."""
        await self._turn.acquire()
        job = self._begin(self._job({"verb": verb, **asked}, contents))
        return await asyncio.shield(job)

    async def _job(self, document: dict[str, Any], contents: Sequence[bytes]) -> Frame:
        process = self._process
        try:
            if not self.ready or process is None:
                raise Refusal(
                    "starting", "the model is being opened.", "the same request a little later.", retry_after=2
                )
            async with asyncio.timeout(REQUEST_SECONDS):
                return await _exchange(process, document, contents)
        except (asyncio.IncompleteReadError, OSError):  # of which TimeoutError is one
            assert process is not None
            await self._lost(process)
            raise CrashedError from None
        finally:
            self._turn.release()

    async def close(self) -> None:
        """Let the worker end, which it does when nobody will ask it any more."""
        self.ready, self._closed = False, True
        if self._process is not None:
            await _end(self._process, seconds=5.0)
        for task in self._tasks:
            task.cancel()

    def _begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Work that goes on whoever waits for it; its errors are told by who waits, if anybody does."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    async def _watch(self, process: Process) -> None:
        """A worker that ends while nobody asks it anything is replaced as well."""
        await process.wait()
        await self._lost(process)

    async def _lost(self, process: Process) -> None:
        if process is not self._process or not self.ready:
            return
        self.ready = False
        await _end(process, seconds=0.0)
        logger.error("worker lost", extra={"facts": {"code": process.returncode}})
        self._begin(self._replace())

    async def _replace(self) -> None:
        pause = 0.0
        while not self.ready and not self._closed:
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE, 2 * pause + 1)
            self.restarts += 1
            try:
                await self.start()
            except (CrashedError, errors.VitrailError, OSError) as error:
                logger.error("worker not replaced", extra={"facts": {"kind": type(error).__name__}})  # noqa: TRY400
            else:
                logger.info("worker replaced", extra={"facts": {"restarts": self.restarts}})


def _environment() -> dict[str, str]:
    """As __main__ has it, for whoever serves without it: threads that wait must not spin on cores that others want."""
    return {**({} if "OMP_WAIT_POLICY" in os.environ else {"GOMP_SPINCOUNT": "1000"}), **os.environ}


async def _exchange(process: Process, document: dict[str, Any], contents: Sequence[bytes]) -> Frame:
    assert process.stdin is not None
    assert process.stdout is not None
    await send_frame(process.stdin, document, contents)
    return await receive_frame(process.stdout)


async def _retell(process: Process) -> None:
    """What the worker prints, as lines of the log: libraries warn in their own form, and a crash has a trace."""
    assert process.stderr is not None
    while text := await process.stderr.read(LONGEST_REMARK):
        logger.warning("worker said", extra={"facts": {"text": text.decode("utf-8", "replace").rstrip()}})


async def _end(process: Process, *, seconds: float) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(seconds):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
