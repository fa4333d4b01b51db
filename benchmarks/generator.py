"""A cheap load generator, since it shares the cores with the service that it measures: raw sockets, prepared requests.

It parses only the status and the length of a response.
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
MAX_LINES = 256


def requests_of(images: Sequence[bytes]) -> list[bytes]:
    """Build a request for each image."""
    head = b"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: image/jpeg\r\ncontent-length: %d\r\n\r\n"
    return [head % len(image) + image for image in images]


@dataclass
class Tally:
    """Results: seconds by status, and the number of requests without a response."""

    seconds: dict[int, list[float]] = field(default_factory=dict)
    cut: int = 0
    lasted: float = 0.0
    late: list[float] = field(default_factory=list)
    """Seconds by which the generator itself was behind schedule."""
    skipped: int = 0
    """Scheduled requests that were not sent because all connections were in use."""

    def add(self, status: int, seconds: float) -> None:
        """Add a response."""
        self.seconds.setdefault(status, []).append(seconds)

    def num(self, status: int) -> int:
        """The number of responses with a status."""
        return len(self.seconds.get(status, ()))

    def statuses(self) -> dict[str, int]:
        """The number of responses by status."""
        return {str(status): len(seconds) for status, seconds in sorted(self.seconds.items())}


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """Quantiles in milliseconds."""
    ranked = sorted(seconds)
    if not ranked:
        return {}
    at = {"p50_ms": 0.5, "p99_ms": 0.99, "max_ms": 1.0}
    return {name: round(1000 * ranked[min(len(ranked) - 1, int(part * len(ranked)))], 2) for name, part in at.items()}


class Line(asyncio.Protocol):
    """A keep-alive connection; one request at a time."""

    def __init__(self, answered: Callable[[Line, int, float], None], lost: Callable[[Line, bool], None]) -> None:
        self.answered, self.lost = answered, lost
        self.transport: Any = None
        self.sent_at = 0.0
        """When the pending request was sent; 0 if there is none."""
        self.ends = False
        """Whether the last response announced the end of the connection."""
        self._got = b""

    def connection_made(self, transport: Any) -> None:
        """Connected."""
        transport.set_write_buffer_limits(high=2**24)
        self.transport = transport

    def send(self, request: bytes, at: float | None = None) -> None:
        """Send a request."""
        self.sent_at = at or time.perf_counter()
        self.transport.write(request)

    @property
    def whole(self) -> bool:
        """Whether the whole request has been sent."""
        return self.sent_at > 0 and self.transport.get_write_buffer_size() == 0

    def data_received(self, data: bytes) -> None:
        """Parse a response, or wait for the rest of it."""
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
        seconds, self.sent_at = time.perf_counter() - self.sent_at, 0.0
        self.answered(self, int(got[9:12]), seconds)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Closed by either side."""
        self.lost(self, self.sent_at > 0)


async def closed_loop(
    place: Place, requests: Sequence[bytes], *, lines: int, seconds: float, warm: float = 1.0
) -> Tally:
    """Clients that send the next request upon each response, and reconnect if need be; the warm-up does not count."""
    loop, tally, turn = asyncio.get_running_loop(), Tally(), iter(range(10**9))
    start = time.perf_counter() + warm
    end = start + seconds

    def answered(line: Line, status: int, took: float) -> None:
        now = time.perf_counter()
        if start <= now < end:
            tally.add(status, took)
        if now < end:
            line.send(requests[next(turn) % len(requests)])
        else:
            line.transport.close()

    def lost(_: Line, waited: bool) -> None:
        tally.cut += waited
        if time.perf_counter() < end:
            tasks.add(loop.create_task(connect()))

    async def connect() -> None:
        _, line = await loop.create_connection(lambda: Line(answered, lost), *place)
        line.send(requests[next(turn) % len(requests)])

    tasks: set[asyncio.Task[None]] = set()
    for _ in range(lines):
        await connect()
    await asyncio.sleep(end - time.perf_counter() + 0.5)
    tally.lasted = seconds
    return tally


class Pool:
    """Connections for an open loop; more are opened while all are in use, up to a limit."""

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
        """Open more connections."""
        loop = asyncio.get_running_loop()
        for _ in range(min(num, MAX_LINES - self.num)):
            self.num += 1
            self.idle.append((await loop.create_connection(lambda: Line(self._answered, self._lost), *self.place))[1])

    def send(self, request: bytes, due: float) -> None:
        """Send a request that was due at that time, if a connection is free."""
        if not self.idle:
            self.tally.skipped += 1
            return
        self.tally.late.append(time.perf_counter() - due)
        self.idle.popleft().send(request)


def arrivals(kind: str, rate: float, seconds: float, seed: int = 0) -> Iterator[float]:
    """Arrival times at a rate: `jittered`, at random within equal slots, or `poisson`."""
    rng = random.Random(seed)
    due = 0.0
    for slot in range(int(rate * seconds)):
        due = (slot + rng.random()) / rate if kind == "jittered" else due + rng.expovariate(rate)
        yield due


async def open_loop(
    place: Place, requests: Sequence[bytes], *, rate: float, seconds: float, kind: str = "poisson"
) -> Tally:
    """Send requests on schedule, whether or not earlier ones have a response."""
    pool = Pool(place)
    await pool.grow(16)
    start = time.perf_counter()
    for turn, time_due in enumerate(arrivals(kind, rate, seconds)):
        due = start + time_due
        wait = due - time.perf_counter()
        if wait > 0 or turn % 8 == 0:  # responses are read between arrivals
            await asyncio.sleep(max(0.0, wait))
        if not pool.idle:
            await pool.grow(8)
        pool.send(requests[turn % len(requests)], due)
        if time.perf_counter() > start + seconds:  # behind schedule: the tally shows what it achieved
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
    """Clients that keep sending while the service stops: the fate of requests sent before and after."""
    loop, outcomes = asyncio.get_running_loop(), Counter[str]()
    before: set[Line] = set()
    stopped = False
    over = asyncio.Event()
    left = lines

    def answered(line: Line, status: int, _: float) -> None:
        if line in before:
            before.discard(line)
            outcomes[f"sent before, answered {status}"] += 1
        elif stopped:
            outcomes[f"sent after, answered {status}"] += 1
        line.transport.close() if line.ends else line.send(requests[0])

    def lost(line: Line, waited: bool) -> None:
        nonlocal left
        left -= 1
        if line in before:
            outcomes["sent before, not answered"] += 1
        elif waited:
            outcomes["sent after, cut"] += 1
        if not left:
            over.set()

    opened = [(await loop.create_connection(lambda: Line(answered, lost), *place))[1] for _ in range(lines)]
    for line in opened:
        line.send(requests[0])
    await asyncio.sleep(after)
    before.update(line for line in opened if line.whole)
    outcomes["sent before"] = len(before)
    stopped = True
    stop()
    async with asyncio.timeout(60):
        await over.wait()
    return outcomes
