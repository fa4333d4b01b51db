"""What happens to images between a request and the model's queue: most go straight on, costly ones are decoded first.

Headers say which (vitrail/data/decode_budget.py). A refused image gets its error here. Costly ones are decoded by
another process, one at a time, and join the queue as pixels; those of one request share a budget of time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from vitrail.data.decode_budget import Cost, decode_cost, too_costly
from vitrail.errors import DataError
from vitrail.service.batcher import CRASHED, Batcher, Prediction
from vitrail.service.jobs import error_document
from vitrail.service.limits import (
    MAX_COSTLY_SECONDS,
    MAX_IMAGE_MEMORY,
    MAX_REQUEST_SECONDS,
    MAX_WAITING_COSTLY,
    ApiError,
    too_busy,
)
from vitrail.service.worker_process import WorkerCrashedError, WorkerProcess

COSTLY_SECONDS = 0.05  # estimated; a batch of the model takes about as long
NAME = "this file"


class PreparedPixels(bytes):
    """The pixels of an image that was decoded before it joined the queue."""


class Intake:
    """Sorts the images of requests by what they cost."""

    def __init__(self, batcher: Batcher, preparer: WorkerProcess) -> None:
        self.batcher, self.preparer = batcher, preparer
        self.num_waiting = 0
        """The number of costly images that are not decoded yet."""

    async def predict(self, contents: Sequence[bytes], top: int, deadline: float) -> list[Prediction]:
        """Predict all images of a request; those that cannot be read get an error."""
        refused, costly = _sort(contents)
        plain = [number for number in range(len(contents)) if number not in refused and number not in costly]
        if costly and self.num_waiting + len(costly) > MAX_WAITING_COSTLY:
            raise too_busy()
        queued = dict(zip(plain, self.batcher.put([contents[number] for number in plain], top, deadline), strict=True))
        predictions: dict[int, Prediction] = dict(refused)
        self.num_waiting += len(costly)
        try:
            for number, prepared in zip(costly, await self._prepare([contents[n] for n in costly]), strict=True):
                if isinstance(prepared, PreparedPixels):
                    queued |= {number: self.batcher.put([prepared], top, deadline)[0]}
                else:
                    predictions[number] = prepared
            predictions |= zip(queued, await asyncio.gather(*queued.values()), strict=True)
        finally:
            self.num_waiting -= len(costly)
            for prediction in queued.values():  # the client has gone: the model need not process its other images
                prediction.cancel()
        return [predictions[number] for number in range(len(contents))]

    async def _prepare(self, contents: Sequence[bytes]) -> list[PreparedPixels | Prediction]:
        """Decode costly images one after the other, until the request's time is over."""
        results: list[PreparedPixels | Prediction] = []
        spent = 0.0
        for content in contents:
            if spent >= MAX_COSTLY_SECONDS:
                error = too_costly(NAME, f"{spent:.1f} s for the images before it in this request")
                results.append(error_document("bad_image", error))
                continue
            try:
                await self.preparer.ensure_started()
                document, pixels = await self.preparer.call("read", [content])
            except WorkerCrashedError:
                results.append(CRASHED)
                continue
            spent += document["seconds"]
            results.append(PreparedPixels(pixels[0]) if pixels else {"error": document["error"]})
        return results


def check_cost(content: bytes) -> Cost:
    """What an image costs; raises an error if that is more than the service affords."""
    cost = decode_cost(content, NAME)
    if cost.memory > MAX_IMAGE_MEMORY:
        raise too_costly(NAME, f"{cost.memory // 2**20:,} MiB")
    return cost


def _sort(contents: Sequence[bytes]) -> tuple[dict[int, Prediction], list[int]]:
    """The errors of refused images by their number in the request, and the numbers of costly ones."""
    refused: dict[int, Prediction] = {}
    costly: list[int] = []
    seconds = 0.0
    for number, content in enumerate(contents):
        try:
            cost = check_cost(content)
        except DataError as error:
            refused[number] = error_document("bad_image", error)
            continue
        seconds += cost.seconds
        if cost.doubt or cost.seconds > COSTLY_SECONDS:
            costly.append(number)
    if seconds > MAX_REQUEST_SECONDS:
        message = "the images of this request take too long to decode."
        raise ApiError("too_large", f"{message} Got about {seconds:.0f} s.", "smaller or fewer images.")
    return refused, costly
