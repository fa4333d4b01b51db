"""uvicorn's HTTP protocol with what it lacks: a deadline for whole requests, bounded headers, refusals in JSON."""

from __future__ import annotations

import json
import secrets
from asyncio import TimerHandle, Transport
from functools import cache
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from vitrail.service.gate import HEADERS as SAFE
from vitrail.service.gate import Gate
from vitrail.service.limits import BODY, HEADERS, LINES, RECEIVE_SECONDS, REQUEST_SECONDS, Refusal, too_busy

GRACE = 1.0  # seconds, in which the application refuses a slow body by itself
LAST_WORD = 1.0  # seconds, in which a client may read why before its line is closed


class Protocol(HttpToolsProtocol):
    """One connection.

    A body that was refused is read on and thrown away, so that a client which still sends it gets to read why; but no
    longer than until the deadline.
    """

    _deadline: TimerHandle | None = None
    _unread: TimerHandle | None = None
    heard = 0.0
    """When something last came."""
    _loose = 0
    """Bytes of the request that are no body: headers, the framing of chunks, trailers."""
    _in_body = False
    _away = False
    """Whether the request that comes has been refused, and its body is thrown away."""
    _deaf = False
    """Whether nothing that comes is listened to any more."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect()
        self.heard = self.loop.time()
        if len(self.connections) > LINES:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle()
        self._read()
        for cycle, _ in self.pipeline:  # they wait behind another, and would wait for ever
            cycle.disconnected = True
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self.heard = self.loop.time()
        self._loose += len(data)
        super().data_received(data)
        if self._loose > (HEADERS + BODY if self._in_body else HEADERS):
            self.send_400_response("the headers are too long.")
        elif self._loose > 0 and self._deadline is None and self.idle:
            self._expect()  # line breaks between two requests are no request, but they stop uvicorn's clock

    def pause_writing(self) -> None:
        """A client that reads nothing is waited for as long as for an answer, and no longer."""
        super().pause_writing()
        self._unread = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._read()

    def _read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._unset_keepalive_if_required()  # of one that was turned away just before it, on the same line
        self._settle()  # whatever time it took to come, it now has all of its own
        self._expect()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:  # trailers say nothing that is wanted, and could be many
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_body = True
        if not self.url.startswith((b"/", b"*")):  # the host of a whole URL counts, not that of the header
            whole = httptools.parse_url(self.url)
            port = f":{whole.port}" if whole.port else ""
            self.headers[:] = [each for each in self.headers if each[0] != b"host"]
            self.headers.append((b"host", (whole.host or b"") + port.encode()))
        if not self._turn_away():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._loose -= len(body)
        if not self._away:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._settle()
        self._loose, self._in_body = 0, False
        if not self._away:
            super().on_message_complete()
            return
        self._away = False
        if self.parser.should_keep_alive():
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        else:
            self.transport.close()

    def _turn_away(self) -> bool:
        """Refuse a request for which there is no room, before anything is made of it; False if it may come in.

        Under overload most requests end here, and what they cost is taken from those that are answered.
        """
        gate: Any = self.app
        if not isinstance(gate, Gate) or self.parser.get_method() != b"POST" or not gate.busy or gate.draining:
            return False
        if not self.idle or self.flow.write_paused or self.expect_100_continue:  # less usual: on the usual way
            return False
        self._away = True
        self.transport.write(_written(too_busy(), close=not self.parser.should_keep_alive()))
        gate.turned_away(self.url.partition(b"?")[0].decode("latin-1"))
        return True

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP is answered by hand, for there is no request to answer."""
        told = msg.lower() if msg.startswith("Invalid") else msg
        self._refuse(Refusal("bad_request", told, "a request in HTTP/1.1."))

    @property
    def idle(self) -> bool:
        """Whether no request of it is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _make_room(self) -> None:
        """Of too many lines, the one that has been silent for longest is closed: who has just come will ask soon."""
        others = [each for each in self.connections if isinstance(each, Protocol) and each is not self and each.idle]
        if others:
            min(others, key=lambda each: each.heard).transport.close()
        else:
            self._refuse(too_busy())

    def _expect(self) -> None:
        self._deadline = self.loop.call_later(RECEIVE_SECONDS + GRACE, self._late)

    def _settle(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        if self.pipeline:  # nothing is read until the request before it is answered
            self._expect()
        elif self.scope is None or self._in_body:  # nothing has come, or the gate has refused what came
            self.transport.close()
        else:
            self._refuse(Refusal("receive_timeout", "the request was not here in time.", "a faster line."))

    def _refuse(self, refusal: Refusal) -> None:
        """Answer what never became a request, and listen no more."""
        if self.transport.is_closing() or self._deaf:
            return
        self._deaf = True
        if not self.idle:
            if not self.cycle.more_body:  # a whole request came before: it has its answer first, and that is the last
                self.cycle.keep_alive = False
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.pipeline or (self._in_body and self.cycle is not None and self.cycle.response_started):
            self.transport.close()  # an answer is under way, or was given
            return
        self.transport.write(_written(refusal, close=True))
        # Closed at once, the line would be reset while the client still sends, and the answer be lost on the way.
        self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(LAST_WORD, self.transport.close)


@cache
def _template(code: str, message: str, hint: str | None, retry_after: int | None, close: bool) -> bytes:
    """An answer with two holes for the request's id, which has sixteen digits as the word that stands for it."""
    refusal = Refusal(code, message, hint, retry_after=retry_after)
    body = json.dumps(refusal.document("0123456789abcdef")).encode()
    headers: list[tuple[bytes, bytes]] = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-request-id", b"0123456789abcdef"),
        *SAFE,
    ]
    if close:
        headers.append((b"connection", b"close"))
    if retry_after is not None:
        headers.append((b"retry-after", str(retry_after).encode()))
    lines: list[Any] = [STATUS_LINE[refusal.status], *(b"%s: %s\r\n" % header for header in headers), b"\r\n", body]
    return b"".join(lines)


def _written(refusal: Refusal, *, close: bool) -> bytes:
    template = _template(refusal.code, refusal.message, refusal.hint, refusal.retry_after, close)
    return template.replace(b"0123456789abcdef", secrets.token_hex(8).encode())
