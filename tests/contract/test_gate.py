"""The gate by itself: what all bodies together may hold, and faults of ours that end one request only."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from tests.contract.serving import in_loop
from vitrail.service import protocol
from vitrail.service.gate import Gate, Message
from vitrail.service.limits import HELD
from vitrail.service.metrics import Metrics

SCOPE = {"type": "http", "method": "POST", "path": "/v1/predict", "headers": [(b"host", b"localhost")]}


def passed(gate: Gate, *, body: bytes = b"picture", scope: dict[str, Any] | None = None) -> list[Message]:
    """All that is sent when a request goes through the gate."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    in_loop(gate({**(scope or SCOPE)}, receive, send))
    return sent


def gate_before(inner: Any) -> Gate:
    return Gate(inner, hosts=["localhost"], token=None, metrics=Metrics(), full=lambda: False)


async def reads(_: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


def test_all_bodies_together_are_bounded() -> None:
    gate = gate_before(reads)
    assert passed(gate)[0]["status"] == 200
    assert gate.held == 0, "what was answered is held no more"
    gate.held = HELD
    sent = passed(gate)
    assert sent[0]["status"] == 429
    assert gate.held == HELD
    assert gate.num_inside == 0


def test_a_fault_of_ours_tells_nothing_of_what_was_sent(caplog: pytest.LogCaptureFixture) -> None:
    async def breaks(*_: Any) -> None:
        raise KeyError("my secret holiday.jpg")

    logging.getLogger("vitrail.service").propagate = True
    gate = gate_before(breaks)
    sent = passed(gate)
    assert sent[0]["status"] == 500
    told = json.loads(sent[1]["body"])
    assert told["error"]["code"] == "internal"
    assert "holiday" not in caplog.text + str(sent)
    record = next(record for record in caplog.records if record.message == "fault")
    assert record.facts["id"] == told["request_id"]  # type: ignore[attr-defined]
    assert record.facts["kind"] == "KeyError"  # type: ignore[attr-defined]
    assert "test_gate.py" in record.facts["at"][-1]  # type: ignore[attr-defined]
    assert gate.num_inside == 0
    assert passed(gate_before(reads))[0]["status"] == 200


@pytest.mark.parametrize("reads", [False, True])
def test_a_client_that_reads_nothing_is_not_waited_for(reads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "REQUEST_SECONDS", 0.05)

    class Line:
        aborted = False

        def abort(self) -> None:
            self.aborted = True

    async def stuck() -> bool:
        one, line = protocol.Protocol.__new__(protocol.Protocol), Line()
        one.loop, one.transport, one.flow = asyncio.get_running_loop(), line, FlowControl(line)  # type: ignore[assignment,arg-type]
        one.pause_writing()
        if reads:
            one.resume_writing()
        await asyncio.sleep(0.15)
        return line.aborted

    assert in_loop(stuck()) is not reads
