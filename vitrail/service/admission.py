"""ASGI middleware for admission control: every request is checked before any of its body is read."""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import time
import traceback
from asyncio import get_running_loop, timeout
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from vitrail.service.limits import (
    MAX_BODY_BYTES,
    MAX_BUFFERED_BYTES,
    MAX_RECEIVING,
    RECEIVE_TIMEOUT,
    ApiError,
    internal_error,
    too_busy,
    too_large,
)
from vitrail.service.metrics import Metrics

logger = logging.getLogger("vitrail.service")
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
PUBLIC_PATHS = ("/livez", "/readyz", "/")
KNOWN_PATHS = (*PUBLIC_PATHS, "/metrics", "/openapi.json", "/v1/model", "/v1/predict", "/v1/explain")
STATIC = "/static/"
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(self), geolocation=(), microphone=()"),
)


class AdmissionMiddleware:
    """Check host, origin, token and capacity; count, time and log requests; turn exceptions into error responses."""

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        *,
        hosts: Collection[str],
        token: str | None,
        metrics: Metrics,
        queue_full: Callable[[], bool],
    ) -> None:
        self.app, self.hosts, self.metrics, self.queue_full = app, frozenset(hosts), metrics, queue_full
        self.token = None if token is None else token.encode()
        self.draining = False
        self.num_in_flight = 0
        metrics.in_flight.set_function(lambda: self.num_in_flight)
        self.buffered_bytes = 0
        """The size of all bodies of requests in flight."""
        self._num_receiving = self._num_rejected_early = 0

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":  # WebSockets are not supported
            return await send({"type": "websocket.close", "code": 1000})
        cycle = RequestCycle(self, scope, receive, send)
        self.num_in_flight += 1
        try:
            self._check(scope, cycle)
            await self.app(scope, cycle.receive, cycle.send)
        except ApiError as error:
            await cycle.send_error(error)
        except Exception as error:  # noqa: BLE001 - a bug fails this request, not the service
            # Log where it happened, not its message, which may quote what the client sent.
            places = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-4:]]
            facts = {"id": cycle.id, "kind": type(error).__name__, "at": places}
            logger.error("internal error", extra={"facts": facts})  # noqa: TRY400
            await cycle.send_error(internal_error())
        finally:
            self.num_in_flight -= 1
            cycle.finish()

    def _check(self, scope: MutableMapping[str, Any], cycle: RequestCycle) -> None:
        self._check_origin(scope, cycle.headers)
        self._check_token(scope["path"], cycle.headers)
        if scope["method"] == "POST":
            self._check_capacity(cycle.headers)

    def _check_origin(self, scope: MutableMapping[str, Any], headers: dict[bytes, bytes]) -> None:
        host = headers.get(b"host", b"").decode("latin-1")
        if sum(name == b"host" for name, _ in scope["headers"]) > 1:
            raise ApiError("bad_request", "there is more than one Host header.")
        if _parse_url(f"//{host}").hostname not in self.hosts:
            raise ApiError("foreign_host", "this host name is not allowed.", "vitrail serve --allow-host NAME.")
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and _parse_url(origin).netloc.lower() != host.lower():
            raise ApiError("foreign_origin", "pages of other sites may not use this service.")

    def _check_token(self, path: str, headers: dict[bytes, bytes]) -> None:
        if self.token is None or path in PUBLIC_PATHS or path.startswith(STATIC):
            return
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(token.strip(), self.token):
            raise ApiError("unauthorized", "the token is missing or wrong.", "the header Authorization: Bearer TOKEN.")

    def _check_capacity(self, headers: dict[bytes, bytes]) -> None:
        if self.draining:
            raise ApiError("draining", "the service is shutting down.", "another server, or later.", retry_after=5)
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise ApiError("unsupported_encoding", "compressed bodies are not supported.", "without Content-Encoding.")
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > MAX_BODY_BYTES:
            raise too_large()
        if self.busy:
            raise too_busy()

    @property
    def busy(self) -> bool:
        """Whether another request with a body would exceed the service's capacity."""
        return self._num_receiving >= MAX_RECEIVING or self.queue_full()

    def count_early_rejection(self, path: str) -> None:
        """Count a request that the protocol rejected; the log gets at most one line per second."""
        path = path if path in KNOWN_PATHS else "other"
        self.metrics.requests.labels(path, 429).inc()
        self.metrics.request_seconds.labels(path).observe(0.0)
        self._num_rejected_early += 1
        if self._num_rejected_early == 1:
            get_running_loop().call_later(1.0, self._log_early_rejections)

    def _log_early_rejections(self) -> None:
        logger.info("rejected early", extra={"facts": {"code": "too_busy", "num": self._num_rejected_early}})
        self._num_rejected_early = 0

    def add_receiving(self, change: int) -> None:
        """Change the number of requests whose bodies are being received."""
        self._num_receiving += change


def _parse_url(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # such as unclosed brackets
        raise ApiError("bad_request", "the Host or Origin header is invalid.") from None


class RequestCycle:
    """One request and its response: counted, timed and logged."""

    def __init__(
        self, middleware: AdmissionMiddleware, scope: MutableMapping[str, Any], receive: Receive, send: Send
    ) -> None:
        self.middleware, self.scope, self._receive, self._send = middleware, scope, receive, send
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.id = secrets.token_hex(8)
        self.started = time.monotonic()
        self.received_bytes = self.status = 0
        self.code = ""
        self._body_complete = scope["method"] in {"GET", "HEAD", "OPTIONS"}
        self._receiving = False
        scope["state"] = {**scope.get("state", {}), "request_id": self.id, "started": self.started}

    async def receive(self) -> Message:
        """The next message of the request; its body is counted and must arrive in time."""
        if self._body_complete:
            return await self._receive()
        if not self._receiving:
            self._receiving = True
            self.middleware.add_receiving(1)
        try:
            async with timeout(max(0.0, self.started + RECEIVE_TIMEOUT - time.monotonic())):
                message = await self._receive()
        except TimeoutError:
            raise ApiError(
                "receive_timeout",
                f"the request did not arrive within {RECEIVE_TIMEOUT:.0f} s.",
                "a faster connection.",
            ) from None
        self._count_bytes(len(message.get("body", b"")))
        if not message.get("more_body"):
            self._finish_receiving()
        return message

    def _count_bytes(self, num: int) -> None:
        self.received_bytes += num
        self.middleware.buffered_bytes += num
        if self.received_bytes > MAX_BODY_BYTES:
            raise too_large()
        if self.middleware.buffered_bytes > MAX_BUFFERED_BYTES:
            raise too_busy()

    def _finish_receiving(self) -> None:
        self._body_complete = True
        if self._receiving:
            self._receiving = False
            self.middleware.add_receiving(-1)

    async def send(self, message: Message) -> None:
        """Send a message of the application, with the headers that all responses have."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), *SECURITY_HEADERS, (b"x-request-id", self.id.encode())]
            # Clients should reconnect elsewhere. But closing while a body still arrives would reset the connection
            # before the client has read the response.
            if self.status == 408 or (self.middleware.draining and self._body_complete):
                headers.append((b"connection", b"close"))
            message = {**message, "headers": headers}
        await self._send(message)

    async def send_error(self, error: ApiError) -> None:
        """Respond with an error, unless a response has begun."""
        if self.status:
            return
        self.code = error.code
        body = json.dumps(error.document(self.id)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if error.retry_after is not None:
            headers.append((b"retry-after", str(error.retry_after).encode()))
        if b"expect" in self.headers and not self._body_complete:  # the client may or may not send its body
            headers.append((b"connection", b"close"))
        if error.code == "unauthorized":
            headers.append((b"www-authenticate", b"Bearer"))
        await self.send({"type": "http.response.start", "status": error.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})

    def finish(self) -> None:
        """Update the metrics and write a log line that contains nothing of the request's content."""
        self._finish_receiving()
        self.middleware.buffered_bytes -= self.received_bytes
        seconds = time.monotonic() - self.started
        path = self.scope["path"] if self.scope["path"] in KNOWN_PATHS else "other"
        self.middleware.metrics.requests.labels(path, self.status or 499).inc()
        self.middleware.metrics.request_seconds.labels(path).observe(seconds)
        if logger.isEnabledFor(logging.INFO):
            facts = {"id": self.id, "method": self.scope["method"], "path": path, "status": self.status or 499}
            facts |= {"ms": round(1000 * seconds, 1), "bytes": self.received_bytes}
            logger.info("request", extra={"facts": facts | ({"code": self.code} if self.code else {})})
