"""A model behind HTTP, with a page."""

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
    ready: Callable[[str, dict[str, Any]], None] = lambda *_: None,
) -> None:
    """Serve a model until SIGTERM or SIGINT, then answer what was accepted and return.

    An address other than loopback needs a `token`. `latency` is the time in seconds that a batch may take. Once
    pictures are taken, `ready` is told the address and what is served.
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
        ready=ready,
    )
