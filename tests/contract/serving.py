"""A real `vitrail serve` in a process of its own, and clients for it: a good one, and bare sockets."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import fill
from vitrail import create_model, save_weights

MODEL = "vit_mu_patch4_gap_16"
SECONDS = 40.0
# As users have it: what is printed waits in a buffer until somebody sees to it.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("PYTHONUNBUFFERED", "VITRAIL_TOKEN")}


def in_loop(work: Coroutine[Any, Any, Any]) -> Any:
    """What asynchronous work comes to; in a thread, for the tests' own may have a loop already (Playwright's)."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


class Told(NamedTuple):
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """Of a refusal."""
        return self.document["error"]["code"]


def write_weights(folder: Path) -> Path:
    path = folder / "model.safetensors"
    save_weights(fill(create_model(MODEL, num_classes=4), 0.3), path)
    return path


def jpeg(seed: int = 0, side: int = 40) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


def form(files: Sequence[tuple[str, bytes]], boundary: str = "b0undary") -> tuple[bytes, dict[str, str]]:
    """The body and the header of a form of files."""
    parts = [
        f'--{boundary}\r\ncontent-disposition: form-data; name="image"; filename="{name}"\r\n\r\n'.encode()
        + content
        + b"\r\n"
        for name, content in files
    ]
    return b"".join([*parts, f"--{boundary}--\r\n".encode()]), {
        "content-type": f"multipart/form-data; boundary={boundary}"
    }


class Served:
    """The process."""

    def __init__(
        self,
        folder: Path,
        *words: str,
        model: str | Path = MODEL,
        weights: Path | None = None,
        env: dict[str, str] | None = None,
    ) -> None:
        self.log = folder / f"{time.monotonic_ns()}.log"
        usual = [sys.executable, "-m", "vitrail", "serve", str(model), "--port", "0", "--json"]
        usual += [] if weights is None else ["--weights", str(weights)]
        with self.log.open("wb") as errors:
            self.process = subprocess.Popen(
                [*usual, *words],
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**ENVIRONMENT, "OMP_NUM_THREADS": "1", **(env or {})},
            )
        assert self.process.stdout is not None
        late = threading.Timer(SECONDS, self.process.kill)
        late.start()
        text = b""
        while not text.endswith(b"}\n"):
            line = self.process.stdout.readline()
            assert line, self.log.read_text()
            text += line
        late.cancel()
        self.told = json.loads(text)
        host, _, port = self.told["address"].removeprefix("http://").rpartition(":")
        self.place = (host.strip("[]"), int(port))

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Told:
        """One request on a line of its own; names of headers have _ for -."""
        line = http.client.HTTPConnection(*self.place, timeout=SECONDS)
        try:
            line.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = line.getresponse()
            return Told(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            line.close()

    def post(self, body: bytes, path: str = "/v1/predict", **headers: str) -> Told:
        return self.ask("POST", path, body, **headers)

    def post_form(self, files: Sequence[tuple[str, bytes]], path: str = "/v1/predict") -> Told:
        body, headers = form(files)
        return self.ask("POST", path, body, content_type=headers["content-type"])

    def line(self) -> socket.socket:
        return socket.create_connection(self.place, timeout=SECONDS)

    def raw(self, content: bytes) -> Told:
        """What is answered to bytes."""
        with self.line() as line:
            line.sendall(content)
            return read_answer(line)

    def metric(self, name: str, **labels: str) -> float:
        """The sum over all samples of a name that have these labels."""
        families = text_string_to_metric_families(self.ask("GET", "/metrics").body.decode())
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    @property
    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    @property
    def memory(self) -> int:
        """Bytes that the service itself holds, without its workers."""
        return psutil.Process(self.process.pid).memory_info().rss

    def lines(self) -> list[dict[str, Any]]:
        """The log, all of which must be JSON but for the remark where it is."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if not line.endswith("stops it.")]

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(SECONDS)
        finally:
            self.process.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()


def read_answer(line: socket.socket) -> Told:
    """The next answer on a line."""
    answer = http.client.HTTPResponse(line)
    answer.begin()
    return Told(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())


def wait_until(holds: Callable[[], bool], seconds: float = SECONDS) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.02)


@contextmanager
def load_on(served: Served, num: int, content: bytes) -> Iterator[list[Told | Exception]]:
    """So many clients that ask again and again, and all that they were told."""
    over = threading.Event()
    told: list[Told | Exception] = []

    def ask() -> None:
        while not over.is_set():
            try:
                told.append(served.post(content))
            except (OSError, http.client.HTTPException) as error:
                told.append(error)
                time.sleep(0.02)

    clients = [threading.Thread(target=ask) for _ in range(num)]
    for client in clients:
        client.start()
    try:
        yield told
    finally:
        over.set()
        for client in clients:
            client.join()
