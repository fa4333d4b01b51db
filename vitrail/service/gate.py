"""The gate before the application: what every request must pass, before anything of it is read or believed."""

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

from vitrail.service.limits import BODY, HELD, RECEIVE_SECONDS, RECEIVING, Refusal, too_busy, too_large
from vitrail.service.metrics import Metrics

logger = logging.getLogger("vitrail.service")
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
OPEN_PATHS = ("/livez", "/readyz", "/")
KNOWN_PATHS = (*OPEN_PATHS, "/metrics", "/openapi.json", "/v1/model", "/v1/predict", "/v1/explain")
STATIC = "/static/"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(self), geolocation=(), microphone=()"),
)


class Gate:
    """An ASGI application around another one."""

    def __init__(
        self,
        inner: Callable[..., Awaitable[None]],
        *,
        hosts: Collection[str],
        token: str | None,
        metrics: Metrics,
        full: Callable[[], bool],
    ) -> None:
        self.inner, self.hosts, self.metrics, self.full = inner, frozenset(hosts), metrics, full
        self.token = None if token is None else token.encode()
        self.draining = False
        self.num_inside = 0
        metrics.inside.set_function(lambda: self.num_inside)
        self.held = 0
        """Bytes of the bodies of those inside."""
        self._receiving = self._turned_away = 0

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.inner(scope, receive, send)
        if scope["type"] != "http":  # no WebSocket is spoken here
            return await send({"type": "websocket.close", "code": 1000})
        passage = Passage(self, scope, receive, send)
        self.num_inside += 1
        try:
            self._check(scope, passage)
            await self.inner(scope, passage.receive, passage.send)
        except Refusal as refusal:
            await passage.refuse(refusal)
        except Exception as error:  # noqa: BLE001 - a fault of ours, which ends this request and no other
            # Its place, not its words: what a client has sent may stand in those.
            places = [f"{each.filename}:{each.lineno}" for each in traceback.extract_tb(error.__traceback__)[-4:]]
            facts = {"id": passage.id, "kind": type(error).__name__, "at": places}
            logger.error("fault", extra={"facts": facts})  # noqa: TRY400
            await passage.refuse(Refusal("internal", "a fault of the service.", "a report of it, with the request_id."))
        finally:
            self.num_inside -= 1
            passage.end()

    def _check(self, scope: MutableMapping[str, Any], passage: Passage) -> None:
        self._check_origin(scope, passage.headers)
        self._check_token(scope["path"], passage.headers)
        if scope["method"] == "POST":
            self._check_room(passage.headers)

    def _check_origin(self, scope: MutableMapping[str, Any], headers: dict[bytes, bytes]) -> None:
        host = headers.get(b"host", b"").decode("latin-1")
        if sum(name == b"host" for name, _ in scope["headers"]) > 1:
            raise Refusal("bad_request", "there is more than one Host.")
        if _split(f"//{host}").hostname not in self.hosts:
            raise Refusal(
                "foreign_host", "this service is not known by that name.", "--allow-host NAME for vitrail serve."
            )
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and _split(origin).netloc.lower() != host.lower():
            raise Refusal("foreign_origin", "pages of other sites may not use this service.")

    def _check_token(self, path: str, headers: dict[bytes, bytes]) -> None:
        if self.token is None or path in OPEN_PATHS or path.startswith(STATIC):
            return
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self.token):
            raise Refusal("unauthorized", "this service wants its token.", "Authorization: Bearer TOKEN.")

    def _check_room(self, headers: dict[bytes, bytes]) -> None:
        if self.draining:
            raise Refusal("draining", "the service is being stopped.", "another one, or later.", retry_after=5)
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise Refusal(
                "unsupported_encoding", "bodies are taken as they are, not compressed.", "no Content-Encoding."
            )
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > BODY:
            raise too_large()
        if self.busy:
            raise too_busy()

    @property
    def busy(self) -> bool:
        """Whether there is no room for another request with a body."""
        return self._receiving >= RECEIVING or self.full()

    def turned_away(self, path: str) -> None:
        """Count a request that was refused before it came in; many are one line of the log, a second later."""
        path = path if path in KNOWN_PATHS else "other"
        self.metrics.requests.labels(path, 429).inc()
        self.metrics.seconds.labels(path).observe(0.0)
        self._turned_away += 1
        if self._turned_away == 1:
            get_running_loop().call_later(1.0, self._tell_turned_away)

    def _tell_turned_away(self) -> None:
        logger.info("turned away", extra={"facts": {"code": "too_busy", "num": self._turned_away}})
        self._turned_away = 0

    def receiving(self, change: int) -> None:
        """One more body is on its way, or one less."""
        self._receiving += change


def _split(address: str) -> SplitResult:
    try:
        return urlsplit(address)
    except ValueError:  # as of brackets that are not closed
        raise Refusal("bad_request", "Host or Origin is no address.") from None


class Passage:
    """One request on its way through the gate: counted, timed, and told about when it is over."""

    def __init__(self, gate: Gate, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        self.gate, self.scope, self._receive, self._send = gate, scope, receive, send
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.id = secrets.token_hex(8)
        self.started = time.monotonic()
        self.received = self.status = 0
        self.code = ""
        self._whole = scope["method"] in {"GET", "HEAD", "OPTIONS"}
        self._counted = False
        scope["state"] = {**scope.get("state", {}), "request_id": self.id, "started": self.started}

    async def receive(self) -> Message:
        """What comes next of the request; its body is counted, and must come in time."""
        if self._whole:
            return await self._receive()
        if not self._counted:
            self._counted = True
            self.gate.receiving(1)
        try:
            async with timeout(max(0.0, self.started + RECEIVE_SECONDS - time.monotonic())):
                message = await self._receive()
        except TimeoutError:
            raise Refusal(
                "receive_timeout", f"the request was not here within {RECEIVE_SECONDS:.0f} s.", "a faster line."
            ) from None
        self._hold(len(message.get("body", b"")))
        if not message.get("more_body"):
            self._arrived()
        return message

    def _hold(self, num: int) -> None:
        self.received += num
        self.gate.held += num
        if self.received > BODY:
            raise too_large()
        if self.gate.held > HELD:
            raise too_busy()

    def _arrived(self) -> None:
        self._whole = True
        if self._counted:
            self._counted = False
            self.gate.receiving(-1)

    async def send(self, message: Message) -> None:
        """What the application answers, with the headers that all answers have."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), *HEADERS, (b"x-request-id", self.id.encode())]
            # Who is sent away comes back on another line; but while a body still comes, a closed line would be reset
            # before the client has read why.
            if self.status == 408 or (self.gate.draining and self._whole):
                headers.append((b"connection", b"close"))
            message = {**message, "headers": headers}
        await self._send(message)

    async def refuse(self, refusal: Refusal) -> None:
        """Answer with a refusal, unless an answer has begun."""
        if self.status:
            return
        self.code = refusal.code
        body = json.dumps(refusal.document(self.id)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if refusal.retry_after is not None:
            headers.append((b"retry-after", str(refusal.retry_after).encode()))
        if b"expect" in self.headers and not self._whole:  # nobody can tell whether its body will come
            headers.append((b"connection", b"close"))
        if refusal.code == "unauthorized":
            headers.append((b"www-authenticate", b"Bearer"))
        await self.send({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})

    def end(self) -> None:
        """Count it, and write a line about it that holds nothing of what was sent."""
        self._arrived()
        self.gate.held -= self.received
        seconds = time.monotonic() - self.started
        path = self.scope["path"] if self.scope["path"] in KNOWN_PATHS else "other"
        self.gate.metrics.requests.labels(path, self.status or 499).inc()
        self.gate.metrics.seconds.labels(path).observe(seconds)
        if logger.isEnabledFor(logging.INFO):
            facts = {"id": self.id, "method": self.scope["method"], "path": path, "status": self.status or 499}
            facts |= {"ms": round(1000 * seconds, 1), "bytes": self.received}
            logger.info("request", extra={"facts": facts | ({"code": self.code} if self.code else {})})
