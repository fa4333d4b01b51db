"""Dynamic batching: whatever waits when the worker is free is looked at together.

At low load a picture never waits for company. Under load batches grow by themselves, up to a number that is learned:
as many pictures as the worker manages within the latency target.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from vitrail.service.limits import QUEUE, Refusal, too_busy
from vitrail.service.worker_process import CrashedError

logger = logging.getLogger("vitrail.service")
Answer = dict[str, Any]
Look = Callable[[Sequence[bytes], int], Awaitable[list[Answer]]]
LINGER = 0.05  # of the time of the last batch, for those that it answered to come back
SMALLEST, LARGEST = 1, 32
DEADLY = {"error": {"code": "bad_image", "message": "this picture ends the decoder.", "hint": "saving it anew."}}


class Waiting(NamedTuple):
    """A picture in the queue, and who waits for its answer until when."""

    content: bytes
    top: int
    answer: asyncio.Future[Answer]
    until: float


class Batcher:
    """A bounded queue before one worker."""

    def __init__(self, look: Look, *, latency: float, told: Callable[[int, float], None] = lambda *_: None) -> None:
        self.look, self.latency, self.told = look, latency, told
        self.limit = 8
        """The most pictures a batch, which adapts."""
        self._queue: deque[Waiting] = deque()
        self._filled = asyncio.Event()
        self._last = (0, 0.0)

    @property
    def num_waiting(self) -> int:
        """Pictures in the queue."""
        return len(self._queue)

    def expect(self, seconds: float) -> None:
        """What one picture takes: the first batches are of as many as are likely to be done in time."""
        self.limit = min(LARGEST, max(SMALLEST, int(self.latency / max(seconds, 1e-3))))

    def put(self, contents: Sequence[bytes], top: int, until: float) -> list[asyncio.Future[Answer]]:
        """Queue the pictures of a request, all or none."""
        if len(self._queue) + len(contents) > QUEUE:
            raise too_busy()
        loop = asyncio.get_running_loop()
        waiting = [Waiting(content, top, loop.create_future(), until) for content in contents]
        self._queue.extend(waiting)
        self._filled.set()
        return [each.answer for each in waiting]

    async def run(self) -> None:
        """Look at what waits, for ever."""
        while True:
            await self._filled.wait()
            await self._gather()
            batch = self._taken()
            if not batch:
                continue
            started = time.monotonic()
            await self._answer(batch)
            self._learn(len(batch), time.monotonic() - started)

    async def _gather(self) -> None:
        """Where batches have been of several, wait a moment for those whose answers were just sent."""
        num, seconds = self._last
        if num > 1 and len(self._queue) < min(num, self.limit):
            await asyncio.sleep(LINGER * seconds)

    def _taken(self) -> list[Waiting]:
        batch: list[Waiting] = []
        now = time.monotonic()
        while self._queue and len(batch) < self.limit:
            each = self._queue.popleft()
            if each.answer.done():  # its client has left
                continue
            if each.until < now:
                each.answer.set_exception(_late())
                continue
            batch.append(each)
        if not self._queue:
            self._filled.clear()
        return batch

    async def _answer(self, batch: Sequence[Waiting]) -> None:
        try:
            answers = await self.look([each.content for each in batch], max(each.top for each in batch))
        except CrashedError:
            # One of them did it, or none: each for itself, so that the others get their answers.
            for each in batch:
                await self._alone(each)
            return
        except Refusal as refusal:
            _refuse(batch, refusal)
            return
        except Exception:
            logger.exception("fault of a batch")
            _refuse(batch, Refusal("internal", "a fault of the service."))
            return
        for each, answer in zip(batch, answers, strict=True):
            if not each.answer.done():
                each.answer.set_result(_shortened(answer, each.top))

    async def _alone(self, each: Waiting) -> None:
        """One picture again, as soon as there is a worker for it."""
        while not each.answer.done():
            if each.until < time.monotonic():
                each.answer.set_exception(_late())
                return
            try:
                answers = await self.look([each.content], each.top)
            except Refusal:
                await asyncio.sleep(0.1)
                continue
            except CrashedError:
                answers = [DEADLY]
            except Exception:
                logger.exception("fault of a picture")
                _refuse([each], Refusal("internal", "a fault of the service."))
                return
            if not each.answer.done():
                each.answer.set_result(_shortened(answers[0], each.top))

    def _learn(self, num: int, seconds: float) -> None:
        """A larger batch next time if this one was full and quick enough, a smaller one if it was slow."""
        self._last = (num, seconds)
        self.told(num, seconds)
        if seconds > self.latency:
            self.limit = max(SMALLEST, min(self.limit, int(num * self.latency / seconds) or SMALLEST))
        elif num == self.limit:
            self.limit = min(LARGEST, self.limit + 1)


def _refuse(batch: Sequence[Waiting], refusal: Refusal) -> None:
    for each in batch:
        if not each.answer.done():
            each.answer.set_exception(refusal)


def _late() -> Refusal:
    return Refusal("deadline", "there was no answer in time.", "the same request a little later.", retry_after=1)


def _shortened(answer: Answer, top: int) -> Answer:
    return {**answer, "top": answer["top"][:top]} if "top" in answer else answer
