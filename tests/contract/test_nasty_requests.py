"""Requests that mean harm, or are broken: each is refused in JSON, and those who ask properly notice nothing."""

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
from tests.contract.odd_requests import MIB, ODD, head, sized
from tests.contract.serving import Served, Told, form, jpeg, read_answer, write_weights
from vitrail.service.limits import BODY, LINES, RECEIVE_SECONDS, STATUS

GOOD = jpeg()
REASON = re.compile(r"[a-z_]+")


class Watched(Served):
    """With a good client beside: before, during and after anything nasty it gets its right answer."""

    def watch(self) -> None:
        self.wrong: list[object] = []
        self.num = 0
        self.over = threading.Event()
        self.right = self.post(GOOD).document["predictions"]
        self.client = threading.Thread(target=self._ask)
        self.client.start()

    def _ask(self) -> None:
        while not self.over.is_set():
            try:
                told = self.post(GOOD)
                if told.status != 200 or told.document["predictions"] != self.right:
                    self.wrong.append(told)
            except OSError as error:
                self.wrong.append(error)
            self.num += 1
            time.sleep(0.02)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("nasty")
    one = Watched(folder, weights=write_weights(folder))
    worker = one.workers[0].pid
    one.watch()
    yield one
    one.over.set()
    one.client.join()
    last = one.post(GOOD)
    same = one.workers[0].pid == worker
    assert one.stop() == 0
    assert one.wrong == []
    assert one.num > 0
    assert last.document["predictions"] == one.right
    assert same, "no worker was lost"
    events = {line["event"] for line in one.lines()}
    assert events == {"ready", "request", "draining", "stopped"}
    assert not [line for line in one.lines() if line.get("status", 0) >= 500]


@pytest.fixture(autouse=True)
def _others_are_answered(served: Watched) -> Iterator[None]:
    before = served.num
    yield
    end = time.monotonic() + 10
    while served.num <= before and time.monotonic() < end:
        time.sleep(0.01)
    assert served.num > before
    assert served.wrong == []


def refused(told: Told, *codes: str) -> None:
    assert 400 <= told.status < 500, told
    assert told.headers["content-type"] == "application/json"
    assert told.status == STATUS[told.code]
    assert REASON.fullmatch(told.code)
    assert told.document["error"]["message"]
    if codes:
        assert told.code in codes


@pytest.mark.parametrize("name", ODD)
def test_odd_requests(served: Watched, name: str) -> None:
    started = time.monotonic()
    with served.line() as line:
        with suppress(OSError):  # it may be refused before all of it is sent
            line.sendall(ODD[name])
        refused(read_answer(line))
    assert time.monotonic() - started < 9.0, "not by a deadline"


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
        ("/v1/explain?method=../gate", ()),
        ("/v1/explain?form=%3Cscript%3E", ()),
    ],
)
def test_bad_values(served: Watched, path: str, lines: tuple[str, ...]) -> None:
    refused(served.post(GOOD, path), "bad_parameter")


@pytest.mark.parametrize("way", DAMAGES)
def test_damaged_pictures(served: Watched, way: str) -> None:
    kind, suffix, change = DAMAGES[way]
    content = change(encoded(photo(np.random.default_rng(0))))
    for told in (served.post(content), served.post_form([(f"a{suffix}", content)])):
        if kind == "wrong-suffix":
            assert told.status == 200, "the name of a file says nothing"
        else:
            refused(told, "bad_image", "bad_request")


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
def test_names_of_files(served: Watched, name: str) -> None:
    told = served.post_form([(name, GOOD)])
    assert told.status == 200
    assert told.headers["content-type"] == "application/json"
    assert told.document["predictions"][0]["name"] == name
    assert name not in "".join(told.headers.values())
    assert name not in served.log.read_text()
    assert "script" not in served.log.read_text()


def poured(served: Watched, start: bytes, piece: bytes, total: int) -> tuple[Told | None, int, int]:
    """Bytes without end, as long as they are taken: the answer, the bytes sent, and by how much the service grew."""
    before, sent, peak = served.memory, 0, 0
    with served.line() as line:
        line.sendall(start)
        try:
            while sent < total:
                line.sendall(piece)
                sent += len(piece)
                if sent % (16 * MIB) < len(piece):
                    peak = max(peak, served.memory - before)
        except OSError:
            pass
        try:
            told = read_answer(line)
        except (OSError, ValueError):
            told = None
    return told, sent, max(peak, served.memory - before)


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
    ids=["true length", "a form", "chunks", "a length too small", "tiny chunks", "a chunk's endless remark"],
)
def test_a_gibibyte(served: Watched, lines: list[str], piece: bytes, code: str | None) -> None:
    total = 1024 * MIB if code == "too_large" else 256 * MIB
    told, sent, grown = poured(served, head("POST", "/v1/predict", *lines), piece, total)
    assert grown < 48 * MIB
    assert told is not None, sent
    refused(told, *([code] if code else []))


def test_endless_trailers(served: Watched) -> None:
    start = head("POST", "/v1/predict", "transfer-encoding: chunked") + b"5\r\nhello\r\n0\r\n"
    for piece in (b"x: y\r\n" * 100_000, b"x" * MIB):
        told, sent, grown = poured(served, start, piece, 256 * MIB)
        assert grown < 48 * MIB
        assert told is not None, sent
        refused(told, "bad_request")


def test_an_endless_header(served: Watched) -> None:
    told, sent, grown = poured(served, b"GET /livez HTTP/1.1\r\nx: ", b"y" * MIB, 256 * MIB)
    assert grown < 16 * MIB
    assert told is not None, sent
    refused(told, "bad_request")


def test_a_length_too_small_for_what_follows(served: Watched) -> None:
    """What stands over is taken for another request, and is none."""
    with served.line() as line:
        line.sendall(head("POST", "/v1/predict", f"content-length: {len(GOOD)}") + GOOD + GOOD)
        assert read_answer(line).status == 200


def test_an_unwanted_body_is_refused_before_it_is_sent(served: Watched) -> None:
    with served.line() as line:
        line.sendall(head("POST", "/v1/predict", f"content-length: {BODY + 1}", "expect: 100-continue"))
        refused(read_answer(line), "too_large")
    with served.line() as line:
        line.sendall(head("POST", "/v1/predict", f"content-length: {len(GOOD)}", "expect: 100-continue"))
        assert line.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        line.sendall(GOOD)
        assert read_answer(line).status == 200


def test_exactly_as_much_as_is_taken(served: Watched) -> None:
    assert served.post(GOOD + bytes(BODY - len(GOOD))).status in (200, 422)
    refused(served.post(GOOD + bytes(BODY + 1 - len(GOOD))), "too_large")


def test_requests_one_after_the_other(served: Watched) -> None:
    """Pipelined: answered in order, and what is no request comes last."""
    good = sized(GOOD)
    with served.line() as line:
        line.sendall(good + head("GET", "/livez") + head("GET", "/nowhere") + good + b"garbage\r\n\r\n")
        answers = [read_pipelined(line) for _ in range(4)]
    assert [each.status for each in answers] == [200, 200, 404, 200]


def read_pipelined(line: socket.socket) -> Told:
    """An answer of known length, and not a byte more."""
    text = b""
    while not text.endswith(b"\r\n\r\n"):
        got = line.recv(1)
        assert got, text
        text += got
    status, *lines = text.decode().split("\r\n")[:-2]
    headers = dict(each.lower().split(": ", 1) for each in lines)
    body = b""
    while len(body) < int(headers["content-length"]):
        body += line.recv(int(headers["content-length"]) - len(body))
    return Told(int(status.split()[1]), headers, body)


def test_lines_that_are_cut(served: Watched) -> None:
    body, headers = form([("a.jpg", GOOD)] * 16)
    whole = head("POST", "/v1/predict", f"content-type: {headers['content-type']}", f"content-length: {len(body)}")
    whole += body
    for number in range(40):
        with served.line() as line:
            line.sendall(whole[: len(whole) * number // 40])
            if number % 2:  # a reset, not an end
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_many_lines(served: Watched) -> None:
    """More of them than are kept, which say nothing: the oldest are closed, and who asks is answered."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * LINES)), hard))
    lines: list[socket.socket] = []
    try:
        lines.extend(served.line() for _ in range(LINES + 50))
        assert served.post(GOOD).status == 200
        lines[0].settimeout(2.0)
        assert lines[0].recv(1) == b""
        lines[-1].sendall(head("GET", "/livez"))
        assert read_answer(lines[-1]).status == 200
    finally:
        for line in lines:
            line.close()


def test_slow_senders(served: Watched) -> None:
    """All at once, for each takes as long as the deadline."""
    starts = {
        "nothing at all": b"",
        "a line of the head": b"POST /v1/predict HTTP/1.1\r\nhost: local",
        "no body": head("POST", "/v1/predict", "content-length: 1000"),
        "half a body": head("POST", "/v1/predict", "content-length: 1000") + bytes(500),
        "half a chunk": head("POST", "/v1/predict", "transfer-encoding: chunked") + b"ff\r\nabc",
        "a length too large": head("POST", "/v1/predict", f"content-length: {len(GOOD) + 1}") + GOOD,
        "a drop now and then, of the head": b"GET /livez HTTP/1.1\r\nx: ",
        "a drop now and then, of the body": head("POST", "/v1/predict", "content-length: 1000"),
        "a break after an answer": head("GET", "/livez"),
        "a refused body": head("POST", "/v1/predict", f"content-length: {2 * BODY}"),
    }
    lines = {name: served.line() for name in starts}
    started = time.monotonic()
    for name, start in starts.items():
        lines[name].sendall(start)
    assert read_pipelined(lines["a break after an answer"]).status == 200
    lines["a break after an answer"].sendall(b"\r\n")
    refused(read_pipelined(lines["a refused body"]), "too_large")
    while time.monotonic() < started + RECEIVE_SECONDS - 1:
        time.sleep(1.0)
        for name, line in lines.items():
            if name.startswith("a drop"):
                line.sendall(b"x")
    for name, line in lines.items():
        line.settimeout(6.0)
        if name in ("nothing at all", "a refused body"):
            assert line.recv(1) == b"", f"{name}: the line is closed"
        else:
            refused(read_pipelined(line), "receive_timeout")
            assert line.recv(1) == b""
        assert time.monotonic() - started < RECEIVE_SECONDS + 6, name
        line.close()


def test_wrong_tokens_where_none_is_wanted(served: Watched) -> None:
    assert served.ask("GET", "/v1/model", authorization="Bearer \x01").status in (200, 400)
    assert served.post(GOOD, authorization="Bearer nonsense").status == 200


def test_parts_of_answers_are_not_given(served: Watched) -> None:
    told = served.post(GOOD, range="bytes=0-1")
    assert told.status == 200
    assert told.document["predictions"] == served.right


def test_the_folder_of_the_page_has_no_other_files(served: Watched) -> None:
    for name in ("..", "index.html", "page.js/", "%2e%2e/gate.py", ".%00", Path(__file__).name):
        refused(served.ask("GET", f"/static/{name}"), "not_found")
