"""Malicious and malformed requests: each is rejected in JSON, and well-behaved clients notice nothing."""

from __future__ import annotations

import re
import resource
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.contract.damage import DAMAGES, encoded, photo
from tests.contract.odd_requests import MIB, ODD, head, post_with_body
from tests.contract.serving import Response, ServerProcess, form, jpeg, read_response, write_weights
from vitrail.service.limits import MAX_BODY_BYTES, MAX_CONNECTIONS, RECEIVE_TIMEOUT, STATUS

GOOD = jpeg()
CODE = re.compile(r"[a-z_]+")


class WatchedServer(ServerProcess):
    """With a well-behaved client that must get correct responses before, during and after every attack."""

    def watch(self) -> None:
        self.failures: list[object] = []
        self.num_requests = 0
        self.stopped = threading.Event()
        self.expected = self.post(GOOD).document["predictions"]
        self.client = threading.Thread(target=self._send_requests)
        self.client.start()

    def _send_requests(self) -> None:
        while not self.stopped.is_set():
            try:
                response = self.post(GOOD)
                if response.status != 200 or response.document["predictions"] != self.expected:
                    self.failures.append(response)
            except OSError as error:
                self.failures.append(error)
            self.num_requests += 1
            time.sleep(0.02)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedServer]:
    folder = tmp_path_factory.mktemp("nasty")
    server = WatchedServer(folder, weights=write_weights(folder))
    worker = server.workers[0].pid
    server.watch()
    yield server
    server.stopped.set()
    server.client.join()
    last = server.post(GOOD)
    same = server.workers[0].pid == worker
    assert server.stop() == 0
    assert server.failures == []
    assert server.num_requests > 0
    assert last.document["predictions"] == server.expected
    assert same, "the worker crashed"
    events = {line["event"] for line in server.log_lines()}
    assert events == {"ready", "request", "draining", "stopped"}
    assert not [line for line in server.log_lines() if line.get("status", 0) >= 500]


@pytest.fixture(autouse=True)
def _others_are_served(server: WatchedServer) -> Iterator[None]:
    before = server.num_requests
    yield
    end = time.monotonic() + 10
    while server.num_requests <= before and time.monotonic() < end:
        time.sleep(0.01)
    assert server.num_requests > before
    assert server.failures == []


def check_rejected(response: Response, *codes: str) -> None:
    assert 400 <= response.status < 500, response
    assert response.headers["content-type"] == "application/json"
    assert response.status == STATUS[response.code]
    assert CODE.fullmatch(response.code)
    assert response.document["error"]["message"]
    if codes:
        assert response.code in codes


@pytest.mark.parametrize("name", ODD)
def test_odd_requests(server: WatchedServer, name: str) -> None:
    started = time.monotonic()
    with server.connect() as connection:
        with suppress(OSError):  # it may be rejected before all of it is sent
            connection.sendall(ODD[name])
        check_rejected(read_response(connection))
    assert time.monotonic() - started < 9.0, "rejected at once, not by a timeout"


@pytest.mark.parametrize(
    ("path", "lines"),
    [
        ("/v1/predict?top=0", ()),
        ("/v1/predict?top=%00", ()),
        ("/v1/predict?top=1;drop", ()),
        ("/v1/predict?top[]=1&top=x", ()),
        ("/v1/explain?class=%ff%fe", ()),
        ("/v1/explain?class=" + "x" * 300, ()),
        ("/v1/explain?class=-1", ()),
        ("/v1/explain?class=99999999999999999999", ()),
        ("/v1/explain?method=__init__", ()),
        ("/v1/explain?method=../admission", ()),
        ("/v1/explain?form=%3Cscript%3E", ()),
    ],
)
def test_bad_values(server: WatchedServer, path: str, lines: tuple[str, ...]) -> None:
    check_rejected(server.post(GOOD, path), "bad_parameter")


@pytest.mark.parametrize("way", DAMAGES)
def test_damaged_images(server: WatchedServer, way: str) -> None:
    kind, suffix, change = DAMAGES[way]
    content = change(encoded(photo(np.random.default_rng(0))))
    for response in (server.post(content), server.post_form([(f"a{suffix}", content)])):
        if kind == "wrong-suffix":
            assert response.status == 200, "the file name does not matter"
        else:
            check_rejected(response, "bad_image", "bad_request")


NAMES = [
    "../../etc/passwd",
    "a\0b.jpg",
    "a\nb: c.jpg",
    "<script>alert(1)</script>.jpg",
    "a" * 4000,
    "\u202egpj.exe",
    "é",
]


@pytest.mark.parametrize("name", NAMES)
def test_file_names(server: WatchedServer, name: str) -> None:
    response = server.post_form([(name, GOOD)])
    assert response.status == 200
    assert response.headers["content-type"] == "application/json"
    assert response.document["predictions"][0]["name"] == name
    assert name not in "".join(response.headers.values())
    assert name not in server.log_file.read_text()
    assert "script" not in server.log_file.read_text()


def send_endlessly(server: WatchedServer, start: bytes, piece: bytes, total: int) -> tuple[Response | None, int, int]:
    """Send bytes until the server stops reading; return the response, the bytes sent, and the growth of its memory."""
    before, sent, peak = server.memory, 0, 0
    with server.connect() as connection:
        connection.sendall(start)
        try:
            while sent < total:
                connection.sendall(piece)
                sent += len(piece)
                if sent % (16 * MIB) < len(piece):
                    peak = max(peak, server.memory - before)
        except OSError:
            pass
        try:
            response = read_response(connection)
        except (OSError, ValueError):
            response = None
    return response, sent, max(peak, server.memory - before)


CHUNK = b"%x\r\n%s\r\n" % (MIB, bytes(MIB))


@pytest.mark.parametrize(
    ("lines", "piece", "code"),
    [
        (["content-length: 1073741824"], bytes(MIB), "too_large"),
        (["content-length: 1073741824", "content-type: multipart/form-data; boundary=b"], bytes(MIB), "too_large"),
        (["transfer-encoding: chunked"], CHUNK, "too_large"),
        (["content-length: 5"], bytes(MIB), "bad_image"),
        (["transfer-encoding: chunked"], b"1\r\nx\r\n" * 170_000, None),
        (["transfer-encoding: chunked"], b"1;" + b"x" * MIB, None),
    ],
    ids=["true length", "a form", "chunks", "a length too small", "tiny chunks", "an endless chunk extension"],
)
def test_a_gibibyte(server: WatchedServer, lines: list[str], piece: bytes, code: str | None) -> None:
    total = 1024 * MIB if code == "too_large" else 256 * MIB
    response, sent, grown = send_endlessly(server, head("POST", "/v1/predict", *lines), piece, total)
    assert grown < 48 * MIB
    assert response is not None, sent
    check_rejected(response, *([code] if code else []))


def test_endless_trailers(server: WatchedServer) -> None:
    start = head("POST", "/v1/predict", "transfer-encoding: chunked") + b"5\r\nhello\r\n0\r\n"
    for piece in (b"x: y\r\n" * 100_000, b"x" * MIB):
        response, sent, grown = send_endlessly(server, start, piece, 256 * MIB)
        assert grown < 48 * MIB
        assert response is not None, sent
        check_rejected(response, "bad_request")


def test_an_endless_header(server: WatchedServer) -> None:
    response, sent, grown = send_endlessly(server, b"GET /livez HTTP/1.1\r\nx: ", b"y" * MIB, 256 * MIB)
    assert grown < 16 * MIB
    assert response is not None, sent
    check_rejected(response, "bad_request")


def test_a_length_too_small_for_what_follows(server: WatchedServer) -> None:
    """The excess is parsed as another request, and is not one."""
    with server.connect() as connection:
        connection.sendall(head("POST", "/v1/predict", f"content-length: {len(GOOD)}") + GOOD + GOOD)
        assert read_response(connection).status == 200


def test_a_body_that_is_too_large_is_rejected_before_it_is_sent(server: WatchedServer) -> None:
    with server.connect() as connection:
        connection.sendall(head("POST", "/v1/predict", f"content-length: {MAX_BODY_BYTES + 1}", "expect: 100-continue"))
        check_rejected(read_response(connection), "too_large")
    with server.connect() as connection:
        connection.sendall(head("POST", "/v1/predict", f"content-length: {len(GOOD)}", "expect: 100-continue"))
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(GOOD)
        assert read_response(connection).status == 200


def test_the_largest_accepted_body(server: WatchedServer) -> None:
    assert server.post(GOOD + bytes(MAX_BODY_BYTES - len(GOOD))).status in (200, 422)
    check_rejected(server.post(GOOD + bytes(MAX_BODY_BYTES + 1 - len(GOOD))), "too_large")


def test_pipelined_requests(server: WatchedServer) -> None:
    """They are answered in order, and garbage comes last."""
    good = post_with_body(GOOD)
    with server.connect() as connection:
        connection.sendall(good + head("GET", "/livez") + head("GET", "/nowhere") + good + b"garbage\r\n\r\n")
        responses = [read_pipelined(connection) for _ in range(4)]
    assert [each.status for each in responses] == [200, 200, 404, 200]


def read_pipelined(connection: socket.socket) -> Response:
    """Read one response and not a byte more."""
    text = b""
    while not text.endswith(b"\r\n\r\n"):
        got = connection.recv(1)
        assert got, text
        text += got
    status, *lines = text.decode().split("\r\n")[:-2]
    headers = dict(each.lower().split(": ", 1) for each in lines)
    body = b""
    while len(body) < int(headers["content-length"]):
        body += connection.recv(int(headers["content-length"]) - len(body))
    return Response(int(status.split()[1]), headers, body)


def test_dropped_connections(server: WatchedServer) -> None:
    body, headers = form([("a.jpg", GOOD)] * 16)
    whole = head("POST", "/v1/predict", f"content-type: {headers['content-type']}", f"content-length: {len(body)}")
    whole += body
    for number in range(40):
        with server.connect() as connection:
            connection.sendall(whole[: len(whole) * number // 40])
            if number % 2:  # a reset instead of a close
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_many_connections(server: WatchedServer) -> None:
    """More idle connections than are allowed: the oldest are closed, and requests are served."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * MAX_CONNECTIONS)), hard))
    connections: list[socket.socket] = []
    try:
        connections.extend(server.connect() for _ in range(MAX_CONNECTIONS + 50))
        assert server.post(GOOD).status == 200
        connections[0].settimeout(2.0)
        assert connections[0].recv(1) == b""
        connections[-1].sendall(head("GET", "/livez"))
        assert read_response(connections[-1]).status == 200
    finally:
        for connection in connections:
            connection.close()


def test_slow_senders(server: WatchedServer) -> None:
    """All at the same time, because each takes as long as the timeout."""
    starts = {
        "nothing": b"",
        "half a header": b"POST /v1/predict HTTP/1.1\r\nhost: local",
        "no body": head("POST", "/v1/predict", "content-length: 1000"),
        "half a body": head("POST", "/v1/predict", "content-length: 1000") + bytes(500),
        "half a chunk": head("POST", "/v1/predict", "transfer-encoding: chunked") + b"ff\r\nabc",
        "a length too large": head("POST", "/v1/predict", f"content-length: {len(GOOD) + 1}") + GOOD,
        "a slow header": b"GET /livez HTTP/1.1\r\nx: ",
        "a slow body": head("POST", "/v1/predict", "content-length: 1000"),
        "a line break after a response": head("GET", "/livez"),
        "a rejected body": head("POST", "/v1/predict", f"content-length: {2 * MAX_BODY_BYTES}"),
    }
    connections = {name: server.connect() for name in starts}
    started = time.monotonic()
    for name, start in starts.items():
        connections[name].sendall(start)
    assert read_pipelined(connections["a line break after a response"]).status == 200
    connections["a line break after a response"].sendall(b"\r\n")
    check_rejected(read_pipelined(connections["a rejected body"]), "too_large")
    while time.monotonic() < started + RECEIVE_TIMEOUT - 1:
        time.sleep(1.0)
        for name, connection in connections.items():
            if name.startswith("a slow"):
                connection.sendall(b"x")
    for name, connection in connections.items():
        connection.settimeout(6.0)
        if name in ("nothing", "a rejected body"):
            assert connection.recv(1) == b"", f"{name}: the connection is closed"
        else:
            check_rejected(read_pipelined(connection), "receive_timeout")
            assert connection.recv(1) == b""
        assert time.monotonic() - started < RECEIVE_TIMEOUT + 6, name
        connection.close()


def test_tokens_are_ignored_if_none_is_required(server: WatchedServer) -> None:
    assert server.request("GET", "/v1/model", authorization="Bearer \x01").status in (200, 400)
    assert server.post(GOOD, authorization="Bearer nonsense").status == 200


def test_range_requests_are_ignored(server: WatchedServer) -> None:
    response = server.post(GOOD, range="bytes=0-1")
    assert response.status == 200
    assert response.document["predictions"] == server.expected


def test_only_the_files_of_the_page_are_served(server: WatchedServer) -> None:
    for name in ("..", "index.html", "page.js/", "%2e%2e/admission.py", ".%00", Path(__file__).name):
        check_rejected(server.request("GET", f"/static/{name}"), "not_found")
