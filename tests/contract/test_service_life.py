"""The service under load: batches, a full queue, clients that leave, workers that are killed, and its end."""

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

from tests.contract.serving import MODEL, Served, Told, jpeg, load_on, read_answer, wait_until, write_weights
from vitrail.service.limits import QUEUE

EVENTS = {"ready", "request", "worker lost", "worker replaced", "turned away", "draining", "stopped"}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_weights(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def served(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    one = Served(tmp_path_factory.mktemp("served"), weights=weights)
    yield one
    assert one.stop() == 0
    assert {line["event"] for line in one.lines()} <= EVENTS


def asked_together(served: Served, num: int, told: list[Told]) -> list[threading.Thread]:
    """So many requests that are inside at the same time."""
    clients = [threading.Thread(target=lambda: told.append(served.post(jpeg()))) for _ in range(num)]
    for client in clients:
        client.start()
    return clients


def test_who_waits_is_looked_at_together(served: Served) -> None:
    batches, images = (served.metric(f"vitrail_batch_images_{what}") for what in ("count", "sum"))
    (worker, *_) = served.workers
    told: list[Told] = []
    worker.suspend()
    try:
        clients = asked_together(served, 17, told)
        wait_until(lambda: served.metric("vitrail_requests_inside") == 17 + 1)
    finally:
        worker.resume()
    for client in clients:
        client.join()
    assert [each.status for each in told] == [200] * 17
    assert len({each.document["predictions"][0]["label"] for each in told}) == 1
    assert served.metric("vitrail_batch_images_sum") == images + 17
    assert served.metric("vitrail_batch_images_count") <= batches + 8


def test_a_full_queue(served: Served) -> None:
    (worker, *_) = served.workers
    told: list[Told] = []
    worker.suspend()
    try:
        clients = asked_together(served, QUEUE + 40, told)  # more than waits and is looked at
        wait_until(lambda: served.metric("vitrail_queue_images") >= QUEUE)
        started = time.monotonic()
        refused = served.post(jpeg())
        assert (refused.status, refused.code) == (429, "too_busy")
        assert int(refused.headers["retry-after"]) >= 1
        assert time.monotonic() - started < 1.0
        assert served.post_form([("a.jpg", jpeg())] * 2).status == 429
        assert served.ask("GET", "/livez").status == 200
        turned_away(served)
    finally:
        worker.resume()
    for client in clients:
        client.join()
    assert {each.status for each in told} == {200, 429}
    assert sum(each.status == 200 for each in told) > QUEUE
    assert served.post(jpeg()).status == 200


def turned_away(served: Served) -> None:
    """Who finds no room may ask again on the same line, whatever of its body is still on its way."""
    start = b"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: 300000\r\n"
    alive = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with served.line() as line:
        for _ in range(3):
            line.sendall(start + b"\r\n" + bytes(100_000))
            assert read_answer(line).code == "too_busy"
            line.sendall(bytes(200_000) + alive)
            assert read_answer(line).document == {"status": "alive"}
    with served.line() as line:  # several at once are answered in order
        line.sendall(alive + start + b"\r\n" + bytes(300_000) + alive)
        assert [read_on(line) for _ in range(3)] == [200, 429, 200]
    for header in (b"connection: close", b"expect: 100-continue"):
        with served.line() as line:
            line.sendall(start + header + b"\r\n\r\n" + (bytes(300_000) if b"close" in header else b""))
            told = read_answer(line)
            assert (told.status, told.headers["connection"]) == (429, "close")
            assert line.recv(1) == b""


def read_on(line: socket.socket) -> int:
    """The status of an answer of known length, of which not a byte more is read."""
    text = b""
    while not text.endswith(b"\r\n\r\n"):
        text += line.recv(1)
    left = int(text.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while left:
        left -= len(line.recv(left))
    return int(text[9:12])


def test_who_leaves_is_not_looked_at(served: Served) -> None:
    images = served.metric("vitrail_batch_images_sum")
    (worker, *_) = served.workers
    told: list[Told] = []
    content = jpeg(3)
    worker.suspend()
    try:
        clients = asked_together(served, 1, told)
        wait_until(lambda: served.metric("vitrail_requests_inside") == 1 + 1)
        wait_until(lambda: served.metric("vitrail_queue_images") == 0)
        with served.line() as line:
            line.sendall(b"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(content))
            line.sendall(content)
            wait_until(lambda: served.metric("vitrail_queue_images") == 1)
        wait_until(lambda: served.metric("vitrail_requests_total", path="/v1/predict", status="499") >= 1)
    finally:
        worker.resume()
    for client in clients:
        client.join()
    assert told[0].status == 200
    assert served.post(jpeg()).status == 200
    assert served.metric("vitrail_batch_images_sum") == images + 2


def test_a_killed_worker_is_replaced(served: Served) -> None:
    restarts = served.metric("vitrail_worker_restarts")
    right = served.post(jpeg()).document["predictions"]
    with load_on(served, 6, jpeg()) as told:
        wait_until(lambda: len(told) > 20)
        killed = len(told)
        served.workers[0].kill()
        wait_until(lambda: served.metric("vitrail_worker_restarts") == restarts + 1)
        wait_until(lambda: served.ask("GET", "/readyz").status == 200)
        wait_until(lambda: sum(isinstance(each, Told) and each.status == 200 for each in told[killed:]) > 20)
    for each in told:
        assert isinstance(each, Told), "no line was cut"
        if each.status == 200:
            assert each.document["predictions"] == right
        else:
            assert each.code in ("starting", "too_busy", "deadline")
    assert served.metric("vitrail_requests_total", status="500") == 0


def test_a_worker_killed_while_nobody_asks(served: Served) -> None:
    wait_until(lambda: served.ask("GET", "/readyz").status == 200)
    restarts = served.metric("vitrail_worker_restarts")
    served.workers[0].kill()
    wait_until(lambda: served.metric("vitrail_worker_restarts") == restarts + 1)
    wait_until(lambda: served.ask("GET", "/readyz").status == 200)
    assert served.post(jpeg()).status == 200


def test_what_was_accepted_is_answered_before_the_end(weights: Path, tmp_path: Path) -> None:
    served = Served(tmp_path, weights=weights)
    try:
        content = jpeg()
        request = b"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(content)
        (worker,) = served.workers
        worker.suspend()
        lines = [served.line() for _ in range(20)]
        for line in lines:
            line.sendall(request + content)
        wait_until(lambda: served.metric("vitrail_requests_inside") == 20 + 1)
        half = served.line()
        half.sendall(request + content[:100])
        idle = served.line()
        idle.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert read_answer(idle).status == 200
        served.process.send_signal(signal.SIGTERM)
        wait_until(lambda: any(line["event"] == "draining" for line in served.lines()))
        idle.sendall(request + content)
        late = read_answer(idle)
        assert (late.status, late.code) == (503, "draining")
        assert served.ask("GET", "/readyz").code == "draining"
        half.sendall(content[100:])
        time.sleep(1.0)
        worker.resume()
        for line in [*lines, half]:
            assert read_answer(line).status == 200
            line.close()
        idle.close()
        assert served.process.wait(20) == 0
        assert served.lines()[-1]["event"] == "stopped"
        with pytest.raises(ConnectionError):
            served.line()
    finally:
        served.stop()


def test_a_signal_while_the_model_is_opened(weights: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "vitrail", "serve", MODEL, "--weights", str(weights), "--port", "0"]
    with subprocess.Popen(words, env=os.environ, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        time.sleep(1.5)
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=20)
    assert process.returncode in (0, -signal.SIGTERM)
    assert out == b""
    assert b"Traceback" not in errors
