"""What images that are made to cost time and memory cost: one by one in predict, check and serve, and as a load.

python benchmarks/hostile_images.py MODEL IMAGES --weights WEIGHTS --minutes 5 --out benchmarks/hostile-images.json

Each image of tests/hostile/images.py, full size: seconds, processor seconds, and MiB above the resting process, its
children included. Then sixteen clients that send the costliest of them without pause, beside four that send good ones:
the good ones' times, compared with those that they have alone. Everything shares the cores of this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import psutil
from generator import Place, Tally, closed_loop, quantiles, requests_of
from serve import Service

from vitrail.benchmark.compare import hardware

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.contract.serving import form
from tests.hostile.images import FULL, bmp_rle_within_limits

MIB = 2**20
HOSTILE_CLIENTS, GOOD_CLIENTS, UNDISTURBED_SECONDS, NUM_GOOD = 16, 4, 30.0, 200
FORMS = ("bmp_rle_lines", "bmp_rle_within_limits", "png_grey16", "tiff_float")
WORST = (
    "jpeg_scans", "jpeg_exif_segments", "bmp_rle_within_limits", "bmp_rle4", "tiff_tiny_tiles", "tiff_float",
    "png_grey16", "png_rgba16", "png_tiny_chunks", "gif_comments",
)  # fmt: skip


def main() -> None:
    """Measure and write one JSON document."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("model")
    words.add_argument("images", type=Path)
    words.add_argument("--weights")
    words.add_argument("--minutes", type=float, default=5.0, help="of load")
    words.add_argument("--parts", default="rows,load")
    words.add_argument("--out", type=Path)
    args = words.parse_args()
    document: dict[str, Any] = {"model": args.model, "load_average": psutil.getloadavg()}
    service = Service(args.model, args.weights)
    try:
        if "rows" in args.parts:
            document["rows"] = measure_rows(service, args.model, args.weights)
        if "load" in args.parts:
            document["load"] = measure_load(service, args.images, 60 * args.minutes)
    finally:
        document["exit_code"] = service.stop()
    document["hardware"] = hardware()
    text = json.dumps(document, indent=1)
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")
    else:
        print(text)


class Memory:
    """The most resident memory of a process and its children, above what they had at the start."""

    def __init__(self, pid: int) -> None:
        self.process = psutil.Process(pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def now(self) -> int:
        """Resident bytes."""
        total = 0
        for process in (self.process, *self.process.children(recursive=True)):
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return total

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            self.peak = max(self.peak, self.now())

    def __enter__(self) -> Self:
        self.start = self.peak = self.now()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def mib(self) -> float:
        """MiB above the start."""
        return round((self.peak - self.start) / MIB, 1)


def measure(run: Callable[[], str], pid: int) -> dict[str, Any]:
    """The time, memory and result of one call."""
    with Memory(pid) as memory:
        started, cpu = time.perf_counter(), sum(psutil.Process().cpu_times()[:4])
        result = run()
        seconds, cpu = time.perf_counter() - started, sum(psutil.Process().cpu_times()[:4]) - cpu
    return {"seconds": round(seconds, 3), "own_cpu_seconds": round(cpu, 3), "mib": memory.mib, "result": result}


def measure_rows(service: Service, model: str, weights: str | None) -> list[dict[str, Any]]:
    """Each image in predict, check and serve; some also sixteen times in one form."""
    import os

    from vitrail.data.check import check_source
    from vitrail.data.source import folder
    from vitrail.run.open import open_model
    from vitrail.run.predictor import Predictor
    from vitrail.verbs.predict import _predict_all

    predictor = Predictor(open_model(model, weights))
    rows = []

    def predict(path: Path) -> str:
        (result,) = _predict_all(predictor, [str(path)], 32, None)
        return result.error or "predicted"

    def check(root: Path) -> str:
        return "; ".join(f"{each.kind}: {each.detail}" for each in check_source(folder.open_source(str(root))).findings)

    with tempfile.TemporaryDirectory() as name:
        warm = Path(name, "warm.bmp")
        warm.write_bytes(bmp_rle_within_limits(4, 4))
        predict(warm)  # starts a guard
        post(service.place, [warm.read_bytes()])
        for kind, make in FULL.items():
            content = make()
            path = Path(name, kind, "a", f"{kind}.img.{'jpg' if kind.startswith('jpeg') else kind.partition('_')[0]}")
            path.parent.mkdir(parents=True)
            path.write_bytes(content)
            row: dict[str, Any] = {"name": kind, "bytes": len(content)}
            row["predict"] = measure(lambda path=path: predict(path), os.getpid())
            row["check"] = measure(lambda path=path: check(path.parent.parent), os.getpid())
            row["serve"] = measure(lambda content=content: post(service.place, [content]), service.process.pid)
            if kind in FORMS:
                row["serve_16"] = measure(
                    lambda content=content: post(service.place, [content] * 16), service.process.pid
                )
            print(json.dumps(row), file=sys.stderr, flush=True)
            rows.append(row)
    return rows


def post(place: Place, contents: Sequence[bytes]) -> str:
    """The status of a request, and the first message of an error."""
    body, headers = form([(f"{number}", content) for number, content in enumerate(contents)])
    connection = http.client.HTTPConnection(*place, timeout=60)
    connection.request("POST", "/v1/predict", body, headers)
    response = connection.getresponse()
    document = json.loads(response.read())
    connection.close()
    errors = [row["error"] for row in document.get("predictions", [document]) if "error" in row]
    return f"{response.status}, {len(errors)} errors" + (f": {errors[0]['message']}" if errors else "")


def measure_load(service: Service, images: Path, seconds: float) -> dict[str, Any]:
    """Good clients alone, then beside hostile ones."""
    paths = sorted(path for path in images.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))[:NUM_GOOD]
    good = requests_of([path.read_bytes() for path in paths])
    alone: Tally = asyncio.run(closed_loop(service.place, good, lines=GOOD_CLIENTS, seconds=UNDISTURBED_SECONDS))
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    attack = spawn.Process(target=send_hostile, args=(service.place, seconds, sender))
    with Memory(service.process.pid) as memory:
        attack.start()
        receiver.recv()
        beside: Tally = asyncio.run(closed_loop(service.place, good, lines=GOOD_CLIENTS, seconds=seconds))
        hostile = receiver.recv()
        attack.join()
    before, during = quantiles(alone.seconds.get(200, [])), quantiles(beside.seconds.get(200, []))
    return {
        "seconds": seconds,
        "images": list(WORST),
        "undisturbed": {**before, "statuses": alone.statuses(), "lost": alone.cut},
        "beside_hostile": {**during, "statuses": beside.statuses(), "lost": beside.cut},
        "p99_ratio": round(during["p99_ms"] / before["p99_ms"], 2),
        "hostile": hostile,
        "mib": memory.mib,
    }


def send_hostile(place: Place, seconds: float, sender: Any) -> None:
    """The process of the hostile clients."""
    requests = requests_of([FULL[name]() for name in WORST])
    sender.send("ready")
    tally: Tally = asyncio.run(closed_loop(place, requests, lines=HOSTILE_CLIENTS, seconds=seconds))
    answered = {str(status): quantiles(found) for status, found in sorted(tally.seconds.items())}
    sender.send({"statuses": tally.statuses(), "times": answered, "lost": tally.cut})


if __name__ == "__main__":
    main()
