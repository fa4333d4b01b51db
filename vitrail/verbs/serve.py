"""Serve a model over HTTP, with a web page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vitrail.service.server import run

HOST, PORT, LATENCY = "127.0.0.1", 8000, 0.25


def serve(
    model: str | Path,
    *,
    weights: str | Path | None = None,
    host: str = HOST,
    port: int = PORT,
    token: str | None = None,
    allow_hosts: Sequence[str] = (),
    latency: float = LATENCY,
    quiet: bool = False,
    on_ready: Callable[[str, dict[str, Any]], None] = lambda *_: None,
) -> None:
    """Serve a model until SIGTERM or SIGINT, then finish accepted requests and return.

    An address other than loopback requires a `token`. `latency` is the target time for a batch, in seconds. Once
    requests are accepted, `on_ready` is called with the address and the model's facts.
    """
    run(
        str(model),
        None if weights is None else str(weights),
        host=host,
        port=port,
        token=token,
        allow_hosts=allow_hosts,
        latency=latency,
        quiet=quiet,
        on_ready=on_ready,
    )
