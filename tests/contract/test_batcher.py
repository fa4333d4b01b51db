"""The queue before the worker: batches that grow and shrink, crashes that cost one picture, deadlines, leavers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from tests.contract.serving import in_loop
from vitrail.service import batcher as module
from vitrail.service.batcher import Batcher
from vitrail.service.limits import QUEUE, Refusal
from vitrail.service.worker_process import CrashedError

SOON = 30.0


class Eye:
    """Looks at pictures, each of which takes so many seconds; one that says so ends it."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.batches: list[list[bytes]] = []
        self.absent = 0
        """How many times it is not there, after a crash."""

    async def __call__(self, contents: Sequence[bytes], top: int) -> list[dict[str, Any]]:
        if self.absent:
            self.absent -= 1
            raise Refusal("starting", "not yet.")
        self.batches.append(list(contents))
        await asyncio.sleep(self.seconds * len(contents))
        if b"deadly" in contents:
            self.absent = 1
            raise CrashedError
        return [{"label": content.decode(), "top": list(range(top))} for content in contents]


def ran(work: Callable[[Batcher, Eye], Awaitable[Any]], *, latency: float = 10.0, seconds: float = 0.0) -> Any:
    """What work with a running batcher returns."""

    async def main() -> Any:
        eye = Eye(seconds)
        batcher = Batcher(eye, latency=latency)
        running = asyncio.create_task(batcher.run())
        try:
            async with asyncio.timeout(SOON):
                return await work(batcher, eye)
        finally:
            running.cancel()

    return in_loop(main())


def until(seconds: float = SOON) -> float:
    return time.monotonic() + seconds


def test_what_waits_is_one_batch_and_each_gets_its_own() -> None:
    async def work(batcher: Batcher, eye: Eye) -> Any:
        one = batcher.put([b"a"], 1, until())
        multi_label = batcher.put([b"b", b"c"], 3, until())
        answers = await asyncio.gather(*one, *multi_label)
        assert eye.batches == [[b"a", b"b", b"c"]]
        assert batcher.num_waiting == 0
        return answers

    answers = ran(work)
    assert [answer["label"] for answer in answers] == ["a", "b", "c"]
    assert [len(answer["top"]) for answer in answers] == [1, 3, 3]


def test_one_alone_does_not_wait_for_others() -> None:
    async def work(batcher: Batcher, eye: Eye) -> float:
        started = time.monotonic()
        await asyncio.gather(*batcher.put([b"a"], 1, until()))
        return time.monotonic() - started

    assert ran(work) < 0.1


def test_the_limit_grows_while_there_is_time_and_falls_when_there_is_not() -> None:
    async def work(batcher: Batcher, eye: Eye) -> tuple[int, int]:
        for _ in range(40):
            await asyncio.gather(*batcher.put([b"a"] * 40, 1, until()))
        grown = batcher.limit
        assert max(map(len, eye.batches)) == grown == module.LARGEST
        eye.seconds = 0.02  # 20 ms a picture, so that five are within the target
        for _ in range(4):
            await asyncio.gather(*batcher.put([b"a"] * 40, 1, until()))
        return grown, batcher.limit

    grown, fallen = ran(work, latency=0.1)
    assert fallen <= 6 < grown


def test_a_crash_costs_one_picture() -> None:
    async def work(batcher: Batcher, eye: Eye) -> Any:
        answers = await asyncio.gather(*batcher.put([b"a", b"deadly", b"b"], 2, until()))
        after = await asyncio.gather(*batcher.put([b"c"], 2, until()))
        return [*answers, *after]

    first, deadly, second, after = ran(work)
    assert [each["label"] for each in (first, second, after)] == ["a", "b", "c"]
    assert deadly["error"]["code"] == "bad_image"


def test_a_worker_that_dies_of_something_else_is_asked_again() -> None:
    """Killed from outside, while it looked at one picture: the picture is not blamed."""

    async def work(batcher: Batcher, eye: Eye) -> Any:
        calls = 0

        async def look(contents: Sequence[bytes], top: int) -> list[dict[str, Any]]:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise CrashedError
            return await eye(contents, top)

        batcher.look = look
        return (await asyncio.gather(*batcher.put([b"a"], 2, until())))[0]

    assert ran(work)["label"] == "a"


def test_a_deadly_picture_alone_ends_only_itself() -> None:
    async def work(batcher: Batcher, eye: Eye) -> Any:
        answer = await asyncio.gather(*batcher.put([b"deadly"], 1, until()))
        assert eye.batches == [[b"deadly"], [b"deadly"]]
        return answer[0]

    assert ran(work)["error"]["code"] == "bad_image"


def test_a_full_queue_takes_a_request_whole_or_not_at_all() -> None:
    async def work(batcher: Batcher, eye: Eye) -> None:
        eye.seconds = 0.001
        answers = batcher.put([b"a"] * (QUEUE - 1), 1, until())
        with pytest.raises(Refusal, match="all places") as caught:
            batcher.put([b"b"] * 2, 1, until())
        assert caught.value.retry_after
        assert batcher.num_waiting == QUEUE - 1
        answers += batcher.put([b"c"], 1, until())
        await asyncio.gather(*answers)
        assert sum(map(len, eye.batches)) == QUEUE

    ran(work)


def test_who_has_left_or_is_late_is_not_looked_at() -> None:
    async def work(batcher: Batcher, eye: Eye) -> None:
        eye.seconds = 0.05
        first = batcher.put([b"a"], 1, until())
        await asyncio.sleep(0.01)
        gone, late, last = (batcher.put([each], 1, until(0.02 if each == b"late" else SOON)) for each in GOING)
        gone[0].cancel()
        await asyncio.gather(*first, *last)
        assert eye.batches == [[b"a"], [b"last"]]
        with pytest.raises(Refusal, match="no answer in time"):
            await late[0]

    GOING = (b"gone", b"late", b"last")
    ran(work)


def test_a_fault_of_ours_ends_a_batch_and_not_the_service() -> None:
    async def work(batcher: Batcher, eye: Eye) -> Any:
        async def broken(contents: Sequence[bytes], top: int) -> list[dict[str, Any]]:
            raise KeyError("answers")

        batcher.look = broken
        with pytest.raises(Refusal, match="fault of the service"):
            await batcher.put([b"a"], 1, until())[0]
        batcher.look = eye
        return await batcher.put([b"b"], 1, until())[0]

    assert ran(work)["label"] == "b"


@pytest.mark.parametrize(("seconds", "limit"), [(4.0, 1), (0.05, 5), (0.0001, 32)])
def test_the_first_batches_are_of_what_one_picture_takes(seconds: float, limit: int) -> None:
    async def look(*_: Any) -> list[Any]:
        return []

    async def told() -> int:
        one = module.Batcher(look, latency=0.25)
        one.expect(seconds)
        return one.limit

    assert in_loop(told()) == limit
