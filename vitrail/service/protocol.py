"""uvicorn's HTTP protocol plus what it lacks: a deadline for whole requests, bounded headers, errors in JSON."""

from __future__ import annotations

import json
import secrets
from asyncio import TimerHandle, Transport
from functools import cache
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from vitrail.service.admission import SECURITY_HEADERS, AdmissionMiddleware
from vitrail.service.limits import (
    MAX_BODY_BYTES,
    MAX_CONNECTIONS,
    MAX_HEADER_BYTES,
    RECEIVE_TIMEOUT,
    REQUEST_TIMEOUT,
    ApiError,
    too_busy,
)

GRACE = 1.0  # seconds for the application to reject a slow body first
CLOSE_DELAY = 1.0  # seconds for a client to read an error before its connection is closed
PLACEHOLDER_ID = "0123456789abcdef"  # as long as a request id


class Protocol(HttpToolsProtocol):
    """One connection.

    A rejected body is read and discarded until the deadline, so that a client that is still sending can read the error.
    """

    _deadline: TimerHandle | None = None
    _write_timeout: TimerHandle | None = None
    last_activity = 0.0
    """When data last arrived."""
    _overhead_bytes = 0
    """Bytes of the request outside its body: headers, chunk framing, trailers."""
    _in_body = False
    _discarding_body = False
    """Whether the current request was rejected and its body is discarded."""
    _ignoring_input = False
    """Whether all further input is ignored."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_deadline()
        self.last_activity = self.loop.time()
        if len(self.connections) > MAX_CONNECTIONS:
            self._evict_idle_connection()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self._cancel_write_timeout()
        for cycle, _ in self.pipeline:  # they would wait forever for the request ahead of them
            cycle.disconnected = True
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._ignoring_input:
            return
        self.last_activity = self.loop.time()
        self._overhead_bytes += len(data)
        super().data_received(data)
        if self._overhead_bytes > (MAX_HEADER_BYTES + MAX_BODY_BYTES if self._in_body else MAX_HEADER_BYTES):
            self.send_400_response("the headers are too long.")
        elif self._overhead_bytes > 0 and self._deadline is None and self.idle:
            self._start_deadline()  # line breaks between requests stop uvicorn's keep-alive timer without a request

    def pause_writing(self) -> None:
        """Abort the connection if the client does not read its response in time."""
        super().pause_writing()
        self._write_timeout = self.loop.call_later(REQUEST_TIMEOUT, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_write_timeout()

    def _cancel_write_timeout(self) -> None:
        if self._write_timeout is not None:
            self._write_timeout.cancel()
            self._write_timeout = None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._unset_keepalive_if_required()  # set by a request rejected just before on the same connection
        self._cancel_deadline()  # each request gets its full time
        self._start_deadline()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:  # trailers are not used, and could be many
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_body = True
        if not self.url.startswith((b"/", b"*")):  # the host of an absolute URL overrides the Host header
            url = httptools.parse_url(self.url)
            port = f":{url.port}" if url.port else ""
            self.headers[:] = [header for header in self.headers if header[0] != b"host"]
            self.headers.append((b"host", (url.host or b"") + port.encode()))
        if not self._reject_early():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._overhead_bytes -= len(body)
        if not self._discarding_body:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._cancel_deadline()
        self._overhead_bytes, self._in_body = 0, False
        if not self._discarding_body:
            super().on_message_complete()
            return
        self._discarding_body = False
        if self.parser.should_keep_alive():
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        else:
            self.transport.close()

    def _reject_early(self) -> bool:
        """Reject a request if the service is busy, before the application sees it; return whether it was rejected.

        Under overload most requests end here, and every microsecond spent on them is lost to those that are served.
        """
        app: Any = self.app
        if not isinstance(app, AdmissionMiddleware) or self.parser.get_method() != b"POST":
            return False
        if not app.busy or app.draining:
            return False
        if not self.idle or self.flow.write_paused or self.expect_100_continue:  # rare: left to the middleware
            return False
        self._discarding_body = True
        self.transport.write(_render_error(too_busy(), close=not self.parser.should_keep_alive()))
        app.count_early_rejection(self.url.partition(b"?")[0].decode("latin-1"))
        return True

    def send_400_response(self, msg: str) -> None:
        """Answer input that is not HTTP; the application never sees it."""
        message = msg.lower() if msg.startswith("Invalid") else msg
        self._reject(ApiError("bad_request", message, "an HTTP/1.1 request."))

    @property
    def idle(self) -> bool:
        """Whether no request is in progress on this connection."""
        return self.cycle is None or self.cycle.response_complete

    def _evict_idle_connection(self) -> None:
        """Close the connection that has been idle longest: a new one is more likely to be used."""
        idle = [each for each in self.connections if isinstance(each, Protocol) and each is not self and each.idle]
        if idle:
            min(idle, key=lambda each: each.last_activity).transport.close()
        else:
            self._reject(too_busy())

    def _start_deadline(self) -> None:
        self._deadline = self.loop.call_later(RECEIVE_TIMEOUT + GRACE, self._on_deadline)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_deadline(self) -> None:
        self._deadline = None
        if self.pipeline:  # reading is paused until the previous request is answered
            self._start_deadline()
        elif self.scope is None or self._in_body:  # nothing arrived, or the middleware has rejected it
            self.transport.close()
        else:
            self._reject(ApiError("receive_timeout", "the request did not arrive in time.", "a faster connection."))

    def _reject(self, error: ApiError) -> None:
        """Answer input that never became a request, and ignore the rest."""
        if self.transport.is_closing() or self._ignoring_input:
            return
        self._ignoring_input = True
        if not self.idle:
            if not self.cycle.more_body:  # a complete request came before: answer it, then close
                self.cycle.keep_alive = False
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.pipeline or (self._in_body and self.cycle is not None and self.cycle.response_started):
            self.transport.close()  # a response is being sent, or was sent
            return
        self.transport.write(_render_error(error, close=True))
        # Closing at once would reset the connection while the client is still sending, and lose the response.
        self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(CLOSE_DELAY, self.transport.close)


@cache
def _error_template(code: str, message: str, hint: str | None, retry_after: int | None, close: bool) -> bytes:
    """A complete error response with a placeholder for the request id."""
    error = ApiError(code, message, hint, retry_after=retry_after)
    body = json.dumps(error.document(PLACEHOLDER_ID)).encode()
    headers: list[tuple[bytes, bytes]] = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-request-id", PLACEHOLDER_ID.encode()),
        *SECURITY_HEADERS,
    ]
    if close:
        headers.append((b"connection", b"close"))
    if retry_after is not None:
        headers.append((b"retry-after", str(retry_after).encode()))
    lines: list[Any] = [STATUS_LINE[error.status], *(b"%s: %s\r\n" % header for header in headers), b"\r\n", body]
    return b"".join(lines)


def _render_error(error: ApiError, *, close: bool) -> bytes:
    template = _error_template(error.code, error.message, error.hint, error.retry_after, close)
    return template.replace(PLACEHOLDER_ID.encode(), secrets.token_hex(8).encode())
