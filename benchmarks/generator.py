"""A load generator that costs little, for it shares the cores with what it measures: bare lines, requests made before.

Of an answer only the status and the length are looked at.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Place = tuple[str, int]
MOST_LINES = 256


def requests_of(pictures: Sequence[bytes]) -> list[bytes]:
    """A request for each picture."""
    head = b"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: image/jpeg\r\ncontent-length: %d\r\n\r\n"
    return [head % len(picture) + picture for picture in pictures]


@dataclass
class Tally:
    """What came of requests: seconds by status, and those that got no answer."""

    seconds: dict[int, list[float]] = field(default_factory=dict)
    cut: int = 0
    lasted: float = 0.0
    late: list[float] = field(default_factory=list)
    """Seconds by which the generator itself was behind its plan."""
    skipped: int = 0
    """Requests of the plan that were not sent, for all lines were in use."""

    def add(self, status: int, seconds: float) -> None:
        """One more answer."""
        self.seconds.setdefault(status, []).append(seconds)

    def num(self, status: int) -> int:
        """Answers of a status."""
        return len(self.seconds.get(status, ()))

    def statuses(self) -> dict[str, int]:
        """Answers by status."""
        return {str(status): len(seconds) for status, seconds in sorted(self.seconds.items())}


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """In milliseconds."""
    ranked = sorted(seconds)
    if not ranked:
        return {}
    at = {"p50_ms": 0.5, "p99_ms": 0.99, "max_ms": 1.0}
    return {name: round(1000 * ranked[min(len(ranked) - 1, int(part * len(ranked)))], 2) for name, part in at.items()}


class Line(asyncio.Protocol):
    """A connection that is kept; one request at a time."""

    def __init__(self, answered: Callable[[Line, int, float], None], lost: Callable[[Line, bool], None]) -> None:
        self.answered, self.lost = answered, lost
        self.transport: Any = None
        self.asked = 0.0
        """When the request that has no answer was sent; 0 if there is none."""
        self.ends = False
        """Whether the last answer said that the line will be closed."""
        self._got = b""

    def connection_made(self, transport: Any) -> None:
        """It is there."""
        transport.set_write_buffer_limits(high=2**24)
        self.transport = transport

    def ask(self, request: bytes, at: float | None = None) -> None:
        """Send a request."""
        self.asked = at or time.perf_counter()
        self.transport.write(request)

    @property
    def whole(self) -> bool:
        """Whether all of the request has left."""
        return self.asked > 0 and self.transport.get_write_buffer_size() == 0

    def data_received(self, data: bytes) -> None:
        """An answer, or a part of it."""
        got = self._got = self._got + data if self._got else data
        end = got.find(b"\r\n\r\n")
        if end < 0:
            return
        start = got.find(b"content-length: ", 0, end)
        length = int(got[start + 16 : got.find(b"\r\n", start)])
        if len(got) < end + 4 + length:
            return
        self._got = b""
        self.ends = b"\r\nconnection: close" in got[:end].lower()
        seconds, self.asked = time.perf_counter() - self.asked, 0.0
        self.answered(self, int(got[9:12]), seconds)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Closed, by whomever."""
        self.lost(self, self.asked > 0)


async def closed_loop(
    place: Place, requests: Sequence[bytes], *, lines: int, seconds: float, warm: float = 1.0
) -> Tally:
    """Clients that ask again as soon as they are answered; what is answered in the first moments does not count."""
    loop, tally, turn = asyncio.get_running_loop(), Tally(), iter(range(10**9))
    start = time.perf_counter() + warm
    end = start + seconds

    def answered(line: Line, status: int, took: float) -> None:
        now = time.perf_counter()
        if start <= now < end:
            tally.add(status, took)
        if now < end:
            line.ask(requests[next(turn) % len(requests)])
        else:
            line.transport.close()

    def lost(_: Line, waited: bool) -> None:
        tally.cut += waited

    for _ in range(lines):
        _, line = await loop.create_connection(lambda: Line(answered, lost), *place)
        line.ask(requests[next(turn) % len(requests)])
    await asyncio.sleep(end - time.perf_counter() + 0.5)
    tally.lasted = seconds
    return tally


class Pool:
    """Lines for arrivals that wait for nobody; more of them are opened while all are in use, up to a number."""

    def __init__(self, place: Place) -> None:
        self.place, self.tally = place, Tally()
        self.idle: deque[Line] = deque()
        self.num = 0

    def _answered(self, line: Line, status: int, took: float) -> None:
        self.tally.add(status, took)
        self.idle.append(line)

    def _lost(self, line: Line, waited: bool) -> None:
        self.num -= 1
        self.tally.cut += waited
        if line in self.idle:
            self.idle.remove(line)

    async def grow(self, num: int) -> None:
        """Open more."""
        loop = asyncio.get_running_loop()
        for _ in range(min(num, MOST_LINES - self.num)):
            self.num += 1
            self.idle.append((await loop.create_connection(lambda: Line(self._answered, self._lost), *self.place))[1])

    def ask(self, request: bytes, due: float) -> None:
        """Send a request that was due at that time, if any line is free."""
        if not self.idle:
            self.tally.skipped += 1
            return
        self.tally.late.append(time.perf_counter() - due)
        self.idle.popleft().ask(request)


def arrivals(kind: str, rate: float, seconds: float, seed: int = 0) -> Iterator[float]:
    """Times at so many a second: `jittered`, each anywhere in its own slot, or `poisson`, wholly at random."""
    rng = random.Random(seed)
    due = 0.0
    for slot in range(int(rate * seconds)):
        due = (slot + rng.random()) / rate if kind == "jittered" else due + rng.expovariate(rate)
        yield due


async def open_loop(
    place: Place, requests: Sequence[bytes], *, rate: float, seconds: float, kind: str = "poisson"
) -> Tally:
    """Requests that are sent whether or not those before were answered."""
    pool = Pool(place)
    await pool.grow(16)
    start = time.perf_counter()
    for turn, time_due in enumerate(arrivals(kind, rate, seconds)):
        due = start + time_due
        wait = due - time.perf_counter()
        if wait > 0 or turn % 8 == 0:  # answers are read between arrivals
            await asyncio.sleep(max(0.0, wait))
        if not pool.idle:
            await pool.grow(8)
        pool.ask(requests[turn % len(requests)], due)
        if time.perf_counter() > start + seconds:  # behind its plan: what it managed is told by the tally
            break
    pool.tally.lasted = time.perf_counter() - start
    await asyncio.sleep(2.0)
    for line in list(pool.idle):
        line.transport.close()
    await asyncio.sleep(0.1)
    return pool.tally


async def until_stopped(
    place: Place, requests: Sequence[bytes], *, lines: int, stop: Callable[[], None], after: float
) -> Counter[str]:
    """Clients that ask on while the service is told to stop: what became of what was sent before, and after."""
    loop, told = asyncio.get_running_loop(), Counter[str]()
    before: set[Line] = set()
    stopped = False
    over = asyncio.Event()
    left = lines

    def answered(line: Line, status: int, _: float) -> None:
        if line in before:
            before.discard(line)
            told[f"sent before, answered {status}"] += 1
        elif stopped:
            told[f"sent after, answered {status}"] += 1
        line.transport.close() if line.ends else line.ask(requests[0])

    def lost(line: Line, waited: bool) -> None:
        nonlocal left
        left -= 1
        if line in before:
            told["sent before, not answered"] += 1
        elif waited:
            told["sent after, cut"] += 1
        if not left:
            over.set()

    opened = [(await loop.create_connection(lambda: Line(answered, lost), *place))[1] for _ in range(lines)]
    for line in opened:
        line.ask(requests[0])
    await asyncio.sleep(after)
    before.update(line for line in opened if line.whole)
    told["sent before"] = len(before)
    stopped = True
    stop()
    async with asyncio.timeout(60):
        await over.wait()
    return told
