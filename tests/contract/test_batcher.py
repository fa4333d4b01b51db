"""The batcher: batches that grow and shrink, crashes that cost one image, deadlines, clients that disconnect."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from tests.contract.serving import run_async
from vitrail.service import batcher as module
from vitrail.service.batcher import Batcher
from vitrail.service.limits import MAX_QUEUED_IMAGES, ApiError
from vitrail.service.worker_process import WorkerCrashedError

SOON = 30.0


class FakeWorker:
    """Predicts images at a given number of seconds per image; the image b"deadly" crashes it."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.batches: list[list[bytes]] = []
        self.num_unavailable = 0
        """How many further calls fail because it restarts after a crash."""

    async def __call__(self, contents: Sequence[bytes], top: int) -> list[dict[str, Any]]:
        if self.num_unavailable:
            self.num_unavailable -= 1
            raise ApiError("starting", "not yet.")
        self.batches.append(list(contents))
        await asyncio.sleep(self.seconds * len(contents))
        if b"deadly" in contents:
            self.num_unavailable = 1
            raise WorkerCrashedError
        return [{"label": content.decode(), "top": list(range(top))} for content in contents]


def run_batcher(
    work: Callable[[Batcher, FakeWorker], Awaitable[Any]], *, latency: float = 10.0, seconds: float = 0.0
) -> Any:
    """Run `work` with a running batcher and return its result."""

    async def main() -> Any:
        worker = FakeWorker(seconds)
        batcher = Batcher(worker, latency=latency)
        running = asyncio.create_task(batcher.run())
        try:
            async with asyncio.timeout(SOON):
                return await work(batcher, worker)
        finally:
            running.cancel()

    return run_async(main())


def deadline(seconds: float = SOON) -> float:
    return time.monotonic() + seconds


def test_waiting_images_form_one_batch_and_each_gets_its_own_prediction() -> None:
    async def work(batcher: Batcher, worker: FakeWorker) -> Any:
        one = batcher.put([b"a"], 1, deadline())
        two = batcher.put([b"b", b"c"], 3, deadline())
        predictions = await asyncio.gather(*one, *two)
        assert worker.batches == [[b"a", b"b", b"c"]]
        assert batcher.num_waiting == 0
        return predictions

    predictions = run_batcher(work)
    assert [prediction["label"] for prediction in predictions] == ["a", "b", "c"]
    assert [len(prediction["top"]) for prediction in predictions] == [1, 3, 3]


def test_a_single_image_does_not_wait_for_others() -> None:
    async def work(batcher: Batcher, worker: FakeWorker) -> float:
        started = time.monotonic()
        await asyncio.gather(*batcher.put([b"a"], 1, deadline()))
        return time.monotonic() - started

    assert run_batcher(work) < 0.1


def test_the_limit_grows_within_the_latency_target_and_shrinks_beyond_it() -> None:
    async def work(batcher: Batcher, worker: FakeWorker) -> tuple[int, int]:
        for _ in range(40):
            await asyncio.gather(*batcher.put([b"a"] * 40, 1, deadline()))
        grown = batcher.limit
        assert max(map(len, worker.batches)) == grown == module.MAX_BATCH
        worker.seconds = 0.02  # 20 ms per image, so that five meet the target
        for _ in range(4):
            await asyncio.gather(*batcher.put([b"a"] * 40, 1, deadline()))
        return grown, batcher.limit

    grown, shrunk = run_batcher(work, latency=0.1)
    assert shrunk <= 6 < grown


def test_a_crash_costs_one_image() -> None:
    async def work(batcher: Batcher, worker: FakeWorker) -> Any:
        predictions = await asyncio.gather(*batcher.put([b"a", b"deadly", b"b"], 2, deadline()))
        after = await asyncio.gather(*batcher.put([b"c"], 2, deadline()))
        return [*predictions, *after]

    first, deadly, second, after = run_batcher(work)
    assert [each["label"] for each in (first, second, after)] == ["a", "b", "c"]
    assert deadly["error"]["code"] == "bad_image"


def test_an_image_is_retried_if_the_worker_was_killed_from_outside() -> None:
    """The image is not to blame."""

    async def work(batcher: Batcher, worker: FakeWorker) -> Any:
        calls = 0

        async def predict(contents: Sequence[bytes], top: int) -> list[dict[str, Any]]:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise WorkerCrashedError
            return await worker(contents, top)

        batcher.predict = predict
        return (await asyncio.gather(*batcher.put([b"a"], 2, deadline())))[0]

    assert run_batcher(work)["label"] == "a"


def test_a_deadly_image_alone_fails_only_itself() -> None:
    async def work(batcher: Batcher, worker: FakeWorker) -> Any:
        predictions = await asyncio.gather(*batcher.put([b"deadly"], 1, deadline()))
        assert worker.batches == [[b"deadly"], [b"deadly"]]
        return predictions[0]

    assert run_batcher(work)["error"]["code"] == "bad_image"


def test_a_full_queue_accepts_all_images_of_a_request_or_none() -> None:
    async def work(batcher: Batcher, worker: FakeWorker) -> None:
        worker.seconds = 0.001
        futures = batcher.put([b"a"] * (MAX_QUEUED_IMAGES - 1), 1, deadline())
        with pytest.raises(ApiError, match="queue is full") as caught:
            batcher.put([b"b"] * 2, 1, deadline())
        assert caught.value.retry_after
        assert batcher.num_waiting == MAX_QUEUED_IMAGES - 1
        futures += batcher.put([b"c"], 1, deadline())
        await asyncio.gather(*futures)
        assert sum(map(len, worker.batches)) == MAX_QUEUED_IMAGES

    run_batcher(work)


def test_cancelled_and_late_images_are_skipped() -> None:
    async def work(batcher: Batcher, worker: FakeWorker) -> None:
        worker.seconds = 0.05
        first = batcher.put([b"a"], 1, deadline())
        await asyncio.sleep(0.01)
        cancelled = batcher.put([b"cancelled"], 1, deadline())
        late = batcher.put([b"late"], 1, deadline(0.02))
        last = batcher.put([b"last"], 1, deadline())
        cancelled[0].cancel()
        await asyncio.gather(*first, *last)
        assert worker.batches == [[b"a"], [b"last"]]
        with pytest.raises(ApiError, match="timed out"):
            await late[0]

    run_batcher(work)


def test_an_internal_error_fails_one_batch_but_not_the_service() -> None:
    async def work(batcher: Batcher, worker: FakeWorker) -> Any:
        async def broken(contents: Sequence[bytes], top: int) -> list[dict[str, Any]]:
            raise KeyError("predictions")

        batcher.predict = broken
        with pytest.raises(ApiError, match="failed internally"):
            await batcher.put([b"a"], 1, deadline())[0]
        batcher.predict = worker
        return await batcher.put([b"b"], 1, deadline())[0]

    assert run_batcher(work)["label"] == "b"


@pytest.mark.parametrize(("seconds", "limit"), [(4.0, 1), (0.05, 5), (0.0001, 32)])
def test_the_initial_limit_follows_from_the_time_of_one_image(seconds: float, limit: int) -> None:
    async def predict(*_: Any) -> list[Any]:
        return []

    async def initial_limit() -> int:
        batcher = module.Batcher(predict, latency=0.25)
        batcher.set_initial_limit(seconds)
        return batcher.limit

    assert run_async(initial_limit()) == limit
