"""The service under load: batches, a full queue, disconnecting clients, killed workers, graceful shutdown."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.serving import (
    MODEL,
    Response,
    ServerProcess,
    apply_load,
    jpeg,
    read_response,
    wait_until,
    write_weights,
)
from vitrail.service.limits import MAX_QUEUED_IMAGES

EVENTS = {"ready", "request", "worker lost", "worker restarted", "rejected early", "draining", "stopped"}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_weights(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def server(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("served"), weights=weights)
    yield server
    assert server.stop() == 0
    assert {line["event"] for line in server.log_lines()} <= EVENTS


def send_together(server: ServerProcess, num: int, responses: list[Response]) -> list[threading.Thread]:
    """Start requests that are in flight at the same time."""
    clients = [threading.Thread(target=lambda: responses.append(server.post(jpeg()))) for _ in range(num)]
    for client in clients:
        client.start()
    return clients


def test_waiting_images_form_batches(server: ServerProcess) -> None:
    batches, images = (server.metric(f"vitrail_batch_images_{what}") for what in ("count", "sum"))
    (worker, *_) = server.workers
    responses: list[Response] = []
    worker.suspend()
    try:
        clients = send_together(server, 17, responses)
        wait_until(lambda: server.metric("vitrail_requests_inside") == 17 + 1)
    finally:
        worker.resume()
    for client in clients:
        client.join()
    assert [each.status for each in responses] == [200] * 17
    assert len({each.document["predictions"][0]["label"] for each in responses}) == 1
    assert server.metric("vitrail_batch_images_sum") == images + 17
    assert server.metric("vitrail_batch_images_count") <= batches + 8


def test_a_full_queue(server: ServerProcess) -> None:
    (worker, *_) = server.workers
    responses: list[Response] = []
    worker.suspend()
    try:
        clients = send_together(server, MAX_QUEUED_IMAGES + 40, responses)  # more than the queue and a batch hold
        wait_until(lambda: server.metric("vitrail_queue_images") >= MAX_QUEUED_IMAGES)
        started = time.monotonic()
        rejected = server.post(jpeg())
        assert (rejected.status, rejected.code) == (429, "too_busy")
        assert int(rejected.headers["retry-after"]) >= 1
        assert time.monotonic() - started < 1.0
        assert server.post_form([("a.jpg", jpeg())] * 2).status == 429
        assert server.request("GET", "/livez").status == 200
        check_early_rejections(server)
    finally:
        worker.resume()
    for client in clients:
        client.join()
    assert {each.status for each in responses} == {200, 429}
    assert sum(each.status == 200 for each in responses) > MAX_QUEUED_IMAGES
    assert server.post(jpeg()).status == 200


def check_early_rejections(server: ServerProcess) -> None:
    """A rejected client may reuse its connection, even while its body is still being sent."""
    start = b"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: 300000\r\n"
    alive = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with server.connect() as connection:
        for _ in range(3):
            connection.sendall(start + b"\r\n" + bytes(100_000))
            assert read_response(connection).code == "too_busy"
            connection.sendall(bytes(200_000) + alive)
            assert read_response(connection).document == {"status": "alive"}
    with server.connect() as connection:  # pipelined requests are answered in order
        connection.sendall(alive + start + b"\r\n" + bytes(300_000) + alive)
        assert [read_status(connection) for _ in range(3)] == [200, 429, 200]
    for header in (b"connection: close", b"expect: 100-continue"):
        with server.connect() as connection:
            connection.sendall(start + header + b"\r\n\r\n" + (bytes(300_000) if b"close" in header else b""))
            response = read_response(connection)
            assert (response.status, response.headers["connection"]) == (429, "close")
            assert connection.recv(1) == b""


def read_status(connection: socket.socket) -> int:
    """The status of a response; reads not a byte more than its length."""
    text = b""
    while not text.endswith(b"\r\n\r\n"):
        text += connection.recv(1)
    left = int(text.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while left:
        left -= len(connection.recv(left))
    return int(text[9:12])


def test_images_of_disconnected_clients_are_skipped(server: ServerProcess) -> None:
    images = server.metric("vitrail_batch_images_sum")
    (worker, *_) = server.workers
    responses: list[Response] = []
    content = jpeg(3)
    worker.suspend()
    try:
        clients = send_together(server, 1, responses)
        wait_until(lambda: server.metric("vitrail_requests_inside") == 1 + 1)
        wait_until(lambda: server.metric("vitrail_queue_images") == 0)
        with server.connect() as connection:
            connection.sendall(
                b"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(content)
            )
            connection.sendall(content)
            wait_until(lambda: server.metric("vitrail_queue_images") == 1)
        wait_until(lambda: server.metric("vitrail_requests_total", path="/v1/predict", status="499") >= 1)
    finally:
        worker.resume()
    for client in clients:
        client.join()
    assert responses[0].status == 200
    assert server.post(jpeg()).status == 200
    assert server.metric("vitrail_batch_images_sum") == images + 2


def test_a_killed_worker_is_restarted(server: ServerProcess) -> None:
    restarts = server.metric("vitrail_worker_restarts")
    expected = server.post(jpeg()).document["predictions"]
    with apply_load(server, 6, jpeg()) as responses:
        wait_until(lambda: len(responses) > 20)
        num_before = len(responses)
        server.workers[0].kill()
        wait_until(lambda: server.metric("vitrail_worker_restarts") == restarts + 1)
        wait_until(lambda: server.request("GET", "/readyz").status == 200)
        wait_until(
            lambda: sum(isinstance(each, Response) and each.status == 200 for each in responses[num_before:]) > 20
        )
    for each in responses:
        assert isinstance(each, Response), "no connection was dropped"
        if each.status == 200:
            assert each.document["predictions"] == expected
        else:
            assert each.code in ("starting", "too_busy", "deadline")
    assert server.metric("vitrail_requests_total", status="500") == 0


def test_a_worker_killed_while_idle_is_restarted(server: ServerProcess) -> None:
    wait_until(lambda: server.request("GET", "/readyz").status == 200)
    restarts = server.metric("vitrail_worker_restarts")
    server.workers[0].kill()
    wait_until(lambda: server.metric("vitrail_worker_restarts") == restarts + 1)
    wait_until(lambda: server.request("GET", "/readyz").status == 200)
    assert server.post(jpeg()).status == 200


def test_accepted_requests_are_answered_before_shutdown(weights: Path, tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, weights=weights)
    try:
        content = jpeg()
        request = b"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(content)
        (worker,) = server.workers
        worker.suspend()
        connections = [server.connect() for _ in range(20)]
        for connection in connections:
            connection.sendall(request + content)
        wait_until(lambda: server.metric("vitrail_requests_inside") == 20 + 1)
        half = server.connect()
        half.sendall(request + content[:100])
        idle = server.connect()
        idle.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert read_response(idle).status == 200
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: any(line["event"] == "draining" for line in server.log_lines()))
        idle.sendall(request + content)
        late = read_response(idle)
        assert (late.status, late.code) == (503, "draining")
        assert server.request("GET", "/readyz").code == "draining"
        half.sendall(content[100:])
        time.sleep(1.0)
        worker.resume()
        for connection in [*connections, half]:
            assert read_response(connection).status == 200
            connection.close()
        idle.close()
        assert server.process.wait(20) == 0
        assert server.log_lines()[-1]["event"] == "stopped"
        with pytest.raises(ConnectionError):
            server.connect()
    finally:
        server.stop()


def test_a_signal_while_the_model_is_loading(weights: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "vitrail", "serve", MODEL, "--weights", str(weights), "--port", "0"]
    with subprocess.Popen(words, env=os.environ, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        time.sleep(1.5)
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=20)
    assert process.returncode in (0, -signal.SIGTERM)
    assert out == b""
    assert b"Traceback" not in errors
