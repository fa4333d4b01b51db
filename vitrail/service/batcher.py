"""Dynamic batching: all images that wait when the worker becomes free form one batch.

At low load an image never waits for others. Under load, batches grow up to an adaptive limit: as many images as the
worker processes within the latency target.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from vitrail.service.limits import MAX_QUEUED_IMAGES, ApiError, internal_error, too_busy
from vitrail.service.worker_process import WorkerCrashedError

logger = logging.getLogger("vitrail.service")
Prediction = dict[str, Any]
PredictBatch = Callable[[Sequence[bytes], int], Awaitable[list[Prediction]]]
LINGER = 0.05  # fraction of the last batch's time to wait for its clients to send again
MIN_BATCH, MAX_BATCH = 1, 32
CRASHED = {
    "error": {"code": "bad_image", "message": "this image crashes the decoder.", "hint": "re-saving it as JPEG or PNG."}
}


class QueuedImage(NamedTuple):
    """An image in the queue, the future for its prediction, and its deadline."""

    content: bytes
    top: int
    prediction: asyncio.Future[Prediction]
    deadline: float


class Batcher:
    """A bounded queue in front of one worker."""

    def __init__(
        self, predict: PredictBatch, *, latency: float, on_batch: Callable[[int, float], None] = lambda *_: None
    ) -> None:
        self.predict, self.latency, self.on_batch = predict, latency, on_batch
        self.limit = 8
        """The current maximum batch size."""
        self._queue: deque[QueuedImage] = deque()
        self._not_empty = asyncio.Event()
        self._last_batch = (0, 0.0)

    @property
    def num_waiting(self) -> int:
        """The number of images in the queue."""
        return len(self._queue)

    def set_initial_limit(self, seconds_per_image: float) -> None:
        """Size the first batches so that they probably meet the latency target."""
        self.limit = min(MAX_BATCH, max(MIN_BATCH, int(self.latency / max(seconds_per_image, 1e-3))))

    def put(self, contents: Sequence[bytes], top: int, deadline: float) -> list[asyncio.Future[Prediction]]:
        """Queue all images of a request, or none of them."""
        if len(self._queue) + len(contents) > MAX_QUEUED_IMAGES:
            raise too_busy()
        loop = asyncio.get_running_loop()
        images = [QueuedImage(content, top, loop.create_future(), deadline) for content in contents]
        self._queue.extend(images)
        self._not_empty.set()
        return [image.prediction for image in images]

    async def run(self) -> None:
        """Process batches forever."""
        while True:
            await self._not_empty.wait()
            await self._linger()
            batch = self._next_batch()
            if not batch:
                continue
            started = time.monotonic()
            await self._process(batch)
            self._adapt_limit(len(batch), time.monotonic() - started)

    async def _linger(self) -> None:
        """If the last batch had more than one image, wait briefly for its clients to send their next ones."""
        num, seconds = self._last_batch
        if num > 1 and len(self._queue) < min(num, self.limit):
            await asyncio.sleep(LINGER * seconds)

    def _next_batch(self) -> list[QueuedImage]:
        batch: list[QueuedImage] = []
        now = time.monotonic()
        while self._queue and len(batch) < self.limit:
            image = self._queue.popleft()
            if image.prediction.done():  # its client has disconnected
                continue
            if image.deadline < now:
                image.prediction.set_exception(_deadline_error())
                continue
            batch.append(image)
        if not self._queue:
            self._not_empty.clear()
        return batch

    async def _process(self, batch: Sequence[QueuedImage]) -> None:
        try:
            predictions = await self.predict([image.content for image in batch], max(image.top for image in batch))
        except WorkerCrashedError:
            # At most one image is to blame: retry each alone, so that the others get their predictions.
            for image in batch:
                await self._process_alone(image)
            return
        except ApiError as error:
            _fail(batch, error)
            return
        except Exception:
            logger.exception("batch failed")
            _fail(batch, internal_error())
            return
        for image, prediction in zip(batch, predictions, strict=True):
            if not image.prediction.done():
                image.prediction.set_result(_truncate_top(prediction, image.top))

    async def _process_alone(self, image: QueuedImage) -> None:
        """Retry one image as soon as a worker is ready."""
        while not image.prediction.done():
            if image.deadline < time.monotonic():
                image.prediction.set_exception(_deadline_error())
                return
            try:
                predictions = await self.predict([image.content], image.top)
            except ApiError:
                await asyncio.sleep(0.1)
                continue
            except WorkerCrashedError:
                predictions = [CRASHED]
            except Exception:
                logger.exception("image failed")
                _fail([image], internal_error())
                return
            if not image.prediction.done():
                image.prediction.set_result(_truncate_top(predictions[0], image.top))

    def _adapt_limit(self, num: int, seconds: float) -> None:
        """Raise the limit after a full batch within the latency target, lower it after a slow one."""
        self._last_batch = (num, seconds)
        self.on_batch(num, seconds)
        if seconds > self.latency:
            self.limit = max(MIN_BATCH, min(self.limit, int(num * self.latency / seconds) or MIN_BATCH))
        elif num == self.limit:
            self.limit = min(MAX_BATCH, self.limit + 1)


def _fail(batch: Sequence[QueuedImage], error: ApiError) -> None:
    for image in batch:
        if not image.prediction.done():
            image.prediction.set_exception(error)


def _deadline_error() -> ApiError:
    return ApiError("deadline", "the request timed out.", "again in a moment.", retry_after=1)


def _truncate_top(prediction: Prediction, top: int) -> Prediction:
    return {**prediction, "top": prediction["top"][:top]} if "top" in prediction else prediction
