"""The admission middleware: bounded request bodies, and bugs that fail only one request."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from tests.contract.serving import run_async
from vitrail.service import protocol
from vitrail.service.admission import AdmissionMiddleware, Message
from vitrail.service.limits import MAX_BUFFERED_BYTES
from vitrail.service.metrics import Metrics

SCOPE = {"type": "http", "method": "POST", "path": "/v1/predict", "headers": [(b"host", b"localhost")]}


def send_request(middleware: AdmissionMiddleware, *, body: bytes = b"image") -> list[Message]:
    """All messages that are sent in response to a request."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    run_async(middleware({**SCOPE}, receive, send))
    return sent


def wrap(app: Any) -> AdmissionMiddleware:
    return AdmissionMiddleware(app, hosts=["localhost"], token=None, metrics=Metrics(), queue_full=lambda: False)


async def reads_body(_: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


def test_the_total_size_of_all_bodies_is_bounded() -> None:
    middleware = wrap(reads_body)
    assert send_request(middleware)[0]["status"] == 200
    assert middleware.buffered_bytes == 0, "an answered body is no longer buffered"
    middleware.buffered_bytes = MAX_BUFFERED_BYTES
    sent = send_request(middleware)
    assert sent[0]["status"] == 429
    assert middleware.buffered_bytes == MAX_BUFFERED_BYTES
    assert middleware.num_in_flight == 0


def test_an_internal_error_reveals_nothing_of_the_request(caplog: pytest.LogCaptureFixture) -> None:
    async def fails(*_: Any) -> None:
        raise KeyError("my secret holiday.jpg")

    logging.getLogger("vitrail.service").propagate = True
    middleware = wrap(fails)
    sent = send_request(middleware)
    assert sent[0]["status"] == 500
    document = json.loads(sent[1]["body"])
    assert document["error"]["code"] == "internal"
    assert "holiday" not in caplog.text + str(sent)
    record = next(record for record in caplog.records if record.message == "internal error")
    assert record.facts["id"] == document["request_id"]  # type: ignore[attr-defined]
    assert record.facts["kind"] == "KeyError"  # type: ignore[attr-defined]
    assert "test_admission.py" in record.facts["at"][-1]  # type: ignore[attr-defined]
    assert middleware.num_in_flight == 0
    assert send_request(wrap(reads_body))[0]["status"] == 200


@pytest.mark.parametrize("reads", [False, True])
def test_a_client_that_does_not_read_is_disconnected(reads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "REQUEST_TIMEOUT", 0.05)

    class Transport:
        aborted = False

        def abort(self) -> None:
            self.aborted = True

    async def stall() -> bool:
        connection, transport = protocol.Protocol.__new__(protocol.Protocol), Transport()
        connection.loop, connection.transport = asyncio.get_running_loop(), transport  # type: ignore[assignment]
        connection.flow = FlowControl(transport)  # type: ignore[arg-type]
        connection.pause_writing()
        if reads:
            connection.resume_writing()
        await asyncio.sleep(0.15)
        return transport.aborted

    assert run_async(stall()) is not reads
