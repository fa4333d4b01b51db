"""What the service costs beside its bare engine, how long clients wait, and what happens when there are too many.

python benchmarks/serve.py deit_tiny_patch16_224 PICTURES --weights WEIGHTS --minutes 10 --out benchmarks/serve.json

(a) The engine in a process of its own: the service's worker, in batches of 16 of JPEG bytes, decoding included.
(b) The service with 16 clients that ask again as soon as they are answered, a picture a request; in turns with (a).
(c) Half of that load, which waits for no answers: the time of an answer, beside that of a picture that comes alone.
(d) Ten times what it manages, for so many minutes: answers, refusals, memory; and that it recovers.
(e) Stopped by SIGTERM under load, 20 times: whether all that was sent before is answered.

All of it, the clients too, shares the cores of this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Coroutine
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import psutil
import uvloop
from generator import Place, Tally, closed_loop, open_loop, quantiles, requests_of, until_stopped

from vitrail.benchmark.compare import hardware, take_turns
from vitrail.verbs.serve import LATENCY

CLIENTS, BATCH, STOPS, NUM_IMAGES, TIMES = 16, 16, 20, 500, 10
PATIENCE = 0.05
MIB = 2**20


def main() -> None:
    """Measure and write one JSON document."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("model")
    words.add_argument("pictures", type=Path)
    words.add_argument("--weights")
    words.add_argument("--minutes", type=float, default=10.0, help="of overload")
    words.add_argument("--seconds", type=float, default=20.0, help="of every other measurement")
    words.add_argument("--rounds", type=int, default=5, help="of (a) and (b)")
    words.add_argument("--stops", type=int, default=STOPS)
    words.add_argument("--phases", default="bcde", help="(a) comes with (b)")
    words.add_argument("--out", type=Path)
    told = words.parse_args()
    paths = sorted(path for path in told.pictures.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    pictures = [path.read_bytes() for path in paths[:NUM_IMAGES]]
    document: dict[str, Any] = {
        "model": told.model,
        "pictures": {"num": len(pictures), "mean_bytes": round(statistics.mean(map(len, pictures)))},
        "clients": CLIENTS,
        "latency_ms": round(1000 * LATENCY),
    }
    service = Service(told.model, told.weights)
    try:
        measure(document, service, pictures, told)
    finally:
        service.stop()
    if "e" in told.phases:
        document["stops"] = tell("(e)", stops(told.model, told.weights, requests_of(pictures), told.stops))
    document["hardware"] = hardware()
    text = json.dumps(document, indent=1)
    if told.out:
        told.out.write_text(text + "\n", encoding="utf-8")
    else:
        print(text)


def measure(document: dict[str, Any], service: Service, pictures: list[bytes], told: argparse.Namespace) -> None:
    """All that one service goes through."""
    requests = requests_of(pictures)
    peak = 0.0
    if "b" in told.phases:
        with Engine(told.model, told.weights, pictures) as engine:
            rows = take_turns(
                {"engine": lambda: engine.rate(told.seconds), "http": lambda: peak_of(service, requests, told.seconds)},
                reference="engine",
                unit="pictures/s",
                rounds=told.rounds,
            )
        document["throughput"] = tell("(a), (b)", [row._asdict() for row in rows])
        document["mean_batch"] = service.mean_batch()
        peak = rows[1].value
    peak = peak or peak_of(service, requests, told.seconds)
    if "c" in told.phases:
        document["half_load"] = tell("(c)", half_load(service, requests, peak, told.seconds))
    if "d" in told.phases:
        document["overload"] = tell("(d)", overload(service, requests, peak, 60 * told.minutes))


def tell(name: str, found: Any) -> Any:
    """Say it on the way."""
    print(name, json.dumps(found), file=sys.stderr)
    return found


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """In a fast loop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


class Service:
    """`vitrail serve` in a process of its own, as it comes: its log is written, to nowhere."""

    def __init__(self, model: str, weights: str | None) -> None:
        words = [sys.executable, "-m", "vitrail", "serve", model, "--port", "0", "--json"]
        words += [] if weights is None else ["--weights", weights]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # noqa: S603
        assert self.process.stdout is not None
        text = b""
        while not text.endswith(b"}\n"):
            line = self.process.stdout.readline()
            if not line:
                raise SystemExit("the service did not start")
            text += line
        host, _, port = json.loads(text)["address"].removeprefix("http://").rpartition(":")
        self.place: Place = (host, int(port))

    def memory(self) -> dict[str, float]:
        """Resident memory in MiB, of the service and of its worker."""
        own = psutil.Process(self.process.pid)
        worker = sum(each.memory_info().rss for each in own.children())
        return {"service_mib": round(own.memory_info().rss / MIB, 1), "worker_mib": round(worker / MIB, 1)}

    def mean_batch(self) -> float:
        """Pictures a batch, since it started."""
        with urllib.request.urlopen(f"http://{self.place[0]}:{self.place[1]}/metrics") as answer:
            lines = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if line[0] != "#")
        num = float(lines["vitrail_batch_images_count"])
        return round(float(lines["vitrail_batch_images_sum"]) / max(1.0, num), 2)

    def stop(self) -> int:
        """SIGTERM, and its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


class Engine:
    """The service's worker in a process of its own, without a service."""

    def __init__(self, model: str, weights: str | None, pictures: list[bytes]) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._line, other = spawn.Pipe()
        self._process = spawn.Process(target=work, args=(other, model, weights, pictures))

    def __enter__(self) -> Self:
        self._process.start()
        self._line.recv()
        return self

    def __exit__(self, *_: object) -> None:
        self._line.send(0.0)
        self._process.join()

    def rate(self, seconds: float) -> float:
        """Pictures a second."""
        self._line.send(seconds)
        return self._line.recv()


def work(line: Connection, model: str, weights: str | None, pictures: list[bytes]) -> None:
    """The process of the engine: batches for so many seconds, each time that it is asked."""
    from vitrail.service.worker import Worker

    worker = Worker(model, weights)
    batches = [pictures[start : start + BATCH] for start in range(0, len(pictures) - BATCH + 1, BATCH)]
    line.send("ready")
    while seconds := line.recv():
        worker.predict(batches[0], top=5)
        num, started = 0, time.perf_counter()
        while time.perf_counter() < started + seconds:
            worker.predict(batches[num % len(batches)], top=5)
            num += 1
        line.send(num * BATCH / (time.perf_counter() - started))


def peak_of(service: Service, requests: list[bytes], seconds: float) -> float:
    """Answers a second to clients that ask as fast as they are answered."""
    tally: Tally = run(closed_loop(service.place, requests, lines=CLIENTS, seconds=seconds))
    if tally.cut or set(tally.seconds) != {200}:
        raise SystemExit(f"not all were answered: {tally.statuses()}, {tally.cut} cut")
    return tally.num(200) / seconds


def half_load(service: Service, requests: list[bytes], peak: float, seconds: float) -> dict[str, Any]:
    """How long an answer takes at half of the peak, and when nobody else asks."""
    alone: Tally = run(closed_loop(service.place, requests, lines=1, seconds=min(10.0, seconds)))
    single = quantiles(alone.seconds[200])
    found: dict[str, Any] = {"alone": single}
    # Of one server with a constant time, queueing alone makes the p99 of wholly random arrivals at half of its rate 4.5
    # times the time of one (M/D/1), whatever the server does; the jittered ones show what the service adds.
    for kind in ("jittered", "poisson"):
        tally: Tally = run(open_loop(service.place, requests, rate=peak / 2, seconds=seconds, kind=kind))
        loaded = quantiles(tally.seconds[200])
        found[kind] = {
            "rate": round(len(tally.late) / tally.lasted, 1),
            "statuses": tally.statuses(),
            **loaded,
            "p99_to_single": round(loaded["p99_ms"] / single["p50_ms"], 2),
            "generator_behind": quantiles(tally.late),
        }
    return found


def overload(service: Service, requests: list[bytes], peak: float, seconds: float) -> dict[str, Any]:
    """Far too many requests."""
    before = service.memory()
    tally: Tally = run(open_loop(service.place, requests, rate=TIMES * peak, seconds=seconds))
    after = service.memory()
    goodput = tally.num(200) / tally.lasted
    return {
        "seconds": round(tally.lasted, 1),
        "planned_rate": round(TIMES * peak, 1),
        "sent_rate": round(len(tally.late) / tally.lasted, 1),
        "times_peak": round(len(tally.late) / tally.lasted / peak, 2),
        "statuses": tally.statuses(),
        "cut": tally.cut,
        "goodput": round(goodput, 1),
        "goodput_to_peak": round(goodput / peak, 3),
        "refused": quantiles(refused := tally.seconds.get(429, [])),
        "refused_after_50_ms": sum(took > PATIENCE for took in refused),
        "generator_behind": quantiles(tally.late),
        "answered": quantiles(tally.seconds.get(200, [])),
        "memory_before": before,
        "memory_after": after,
        "peak_afterwards": round(peak_of(service, requests, min(seconds, 10.0)), 1),
    }


def stops(model: str, weights: str | None, requests: list[bytes], num: int) -> dict[str, Any]:
    """Stopped under load."""
    told: Counter[str] = Counter()
    for number in range(num):
        service = Service(model, weights)
        try:
            stop = service.process.terminate
            after = 1.0 + 0.037 * number
            told += run(until_stopped(service.place, requests, lines=CLIENTS, stop=stop, after=after))
        finally:
            told[f"exit code {service.stop()}"] += 1
    return {"stops": num, "sent before, not answered": 0, **dict(sorted(told.items()))}


if __name__ == "__main__":
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the command line has it
    main()
