"""A real `vitrail serve` process, with HTTP clients and raw sockets to test it."""

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
# As for users: standard output is buffered, so the service must flush it.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("PYTHONUNBUFFERED", "VITRAIL_TOKEN")}


def run_async(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in a thread, because the main thread may already have an event loop (Playwright's)."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


class Response(NamedTuple):
    """An HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of an error."""
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
    """The body and the headers of a form with files."""
    parts = [
        f'--{boundary}\r\ncontent-disposition: form-data; name="image"; filename="{name}"\r\n\r\n'.encode()
        + content
        + b"\r\n"
        for name, content in files
    ]
    return b"".join([*parts, f"--{boundary}--\r\n".encode()]), {
        "content-type": f"multipart/form-data; boundary={boundary}"
    }


class ServerProcess:
    """A running `vitrail serve`."""

    def __init__(
        self,
        folder: Path,
        *words: str,
        model: str | Path = MODEL,
        weights: Path | None = None,
        env: dict[str, str] | None = None,
    ) -> None:
        self.log_file = folder / f"{time.monotonic_ns()}.log"
        command = [sys.executable, "-m", "vitrail", "serve", str(model), "--port", "0", "--json"]
        command += [] if weights is None else ["--weights", str(weights)]
        with self.log_file.open("wb") as errors:
            self.process = subprocess.Popen(
                [*command, *words],
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**ENVIRONMENT, "OMP_NUM_THREADS": "1", **(env or {})},
            )
        assert self.process.stdout is not None
        watchdog = threading.Timer(SECONDS, self.process.kill)
        watchdog.start()
        text = b""
        while not text.endswith(b"}\n"):
            line = self.process.stdout.readline()
            assert line, self.log_file.read_text()
            text += line
        watchdog.cancel()
        self.startup = json.loads(text)
        host, _, port = self.startup["address"].removeprefix("http://").rpartition(":")
        self.address = (host.strip("[]"), int(port))

    def request(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Response:
        """One request on its own connection; header names have _ for -."""
        connection = http.client.HTTPConnection(*self.address, timeout=SECONDS)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Response(response.status, headers, response.read())
        finally:
            connection.close()

    def post(self, body: bytes, path: str = "/v1/predict", **headers: str) -> Response:
        return self.request("POST", path, body, **headers)

    def post_form(self, files: Sequence[tuple[str, bytes]], path: str = "/v1/predict") -> Response:
        body, headers = form(files)
        return self.request("POST", path, body, content_type=headers["content-type"])

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=SECONDS)

    def raw(self, content: bytes) -> Response:
        """The response to raw bytes."""
        with self.connect() as connection:
            connection.sendall(content)
            return read_response(connection)

    def metric(self, name: str, **labels: str) -> float:
        """The sum over all samples with this name and these labels."""
        families = text_string_to_metric_families(self.request("GET", "/metrics").body.decode())
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    @property
    def workers(self) -> list[psutil.Process]:
        """Those that hold a model."""
        children = psutil.Process(self.process.pid).children()
        return [child for child in children if "vitrail.service.worker" in child.cmdline()]

    @property
    def memory(self) -> int:
        """Resident bytes of the service without its workers."""
        return psutil.Process(self.process.pid).memory_info().rss

    def log_lines(self) -> list[dict[str, Any]]:
        """The log: JSON except for the line that announces the address."""
        return [json.loads(line) for line in self.log_file.read_text().splitlines() if not line.endswith("to stop.")]

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(SECONDS)
        finally:
            self.process.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()


def read_response(connection: socket.socket) -> Response:
    """Read the next response."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    return Response(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())


def wait_until(condition: Callable[[], bool], seconds: float = SECONDS) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition never became true"
        time.sleep(0.02)


@contextmanager
def apply_load(server: ServerProcess, num: int, content: bytes) -> Iterator[list[Response | Exception]]:
    """Run clients that send request after request; yield the list of their responses."""
    stop = threading.Event()
    responses: list[Response | Exception] = []

    def send_requests() -> None:
        while not stop.is_set():
            try:
                responses.append(server.post(content))
            except (OSError, http.client.HTTPException) as error:
                responses.append(error)
                time.sleep(0.02)

    clients = [threading.Thread(target=send_requests) for _ in range(num)]
    for client in clients:
        client.start()
    try:
        yield responses
    finally:
        stop.set()
        for client in clients:
            client.join()
