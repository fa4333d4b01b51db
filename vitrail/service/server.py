"""The service from its first to its last answer: open the model, answer, and on a signal answer what was accepted."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import uvicorn

from vitrail.errors import ServeError
from vitrail.service import log
from vitrail.service.app import Service, build
from vitrail.service.gate import Gate
from vitrail.service.limits import LINES, QUEUE, REQUEST_SECONDS
from vitrail.service.protocol import Protocol
from vitrail.service.worker_process import CrashedError

logger = logging.getLogger("vitrail.service")
GRACE = 0.5  # seconds in which clients are told to come back elsewhere, before their lines are closed
KEEP_ALIVE = 30  # seconds that an idle line is kept
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def run(
    model: str,
    weights: str | None,
    *,
    host: str,
    port: int,
    token: str | None,
    allow_hosts: Sequence[str],
    latency: float,
    quiet: bool,
    ready: Callable[[str, dict[str, Any]], None],
) -> None:
    """Serve until a signal comes; `ready` is told the address and the model's facts once pictures are taken."""
    check_address(host, token)
    log.set_up(quiet=quiet)
    _allow_lines()
    line = _bind(host, port)
    hosts = {*LOOPBACK, host.lower(), *(each.lower() for each in allow_hosts)}
    with line, asyncio.Runner(loop_factory=_fast_loop()) as runner:
        runner.run(_serve(line, model, weights, token=token, hosts=hosts, latency=latency, ready=ready))


def check_address(host: str, token: str | None) -> None:
    """Refuse to be reached from elsewhere without a token, and tokens that could be guessed."""
    if token is not None and (len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token):
        raise ServeError(
            "the token is too short, or has letters that HTTP cannot carry.",
            got=f"{len(token)} letters.",
            hint="16 or more: python -c 'import secrets; print(secrets.token_urlsafe())'.",
        )
    if token is None and not _is_loopback(host):
        raise ServeError(
            "an address that others can reach needs a token.",
            got=f"--host {host}.",
            hint="VITRAIL_TOKEN in the environment, or --token-file.",
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _bind(host: str, port: int) -> socket.socket:
    line = None
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        line = socket.socket(*family[:3])
        line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        line.bind(family[4])
    except (OSError, OverflowError) as error:
        if line is not None:
            line.close()
        raise ServeError(
            f"{host}:{port} cannot be listened on.", got=f"{error}.", hint="another --port, or 0 for any that is free."
        ) from None
    return line


def _allow_lines() -> None:
    """As many open files as all lines need, where the system lets us; many have 256 or 1,024 by default."""
    try:
        import resource
    except ImportError:  # not of every system
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * LINES if hard == resource.RLIM_INFINITY else min(2 * LINES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not made for every system
        return None
    return uvloop.new_event_loop


class Server(uvicorn.Server):
    """uvicorn's server, which leaves signals to us."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing."""
        yield


async def _serve(
    line: socket.socket,
    model: str,
    weights: str | None,
    *,
    token: str | None,
    hosts: set[str],
    latency: float,
    ready: Callable[[str, dict[str, Any]], None],
) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    service = Service(model, weights, latency=latency)
    try:
        if not await _opened(service, stop):
            return
        gate = Gate(
            build(service),
            hosts=hosts,
            token=token,
            metrics=service.metrics,
            full=lambda: service.batcher.num_waiting >= QUEUE,
        )
        server = Server(_config(gate))
        service.batcher.expect(service.crew.facts["seconds"])
        gc.collect()
        gc.freeze()  # what is there now stays: to look through it again under load would take 50 ms
        line.listen(server.config.backlog)  # before anybody is told the address, for who is told may come at once
        batching = asyncio.create_task(service.batcher.run())
        serving = asyncio.create_task(server.serve(sockets=[line]))
        host, port = line.getsockname()[:2]
        ready(f"http://{f'[{host}]' if ':' in host else host}:{port}", service.crew.facts)
        sys.stdout.flush()  # the address goes to whoever reads a pipe now, not when the service ends
        logger.info("ready", extra={"facts": {key: service.crew.facts[key] for key in ("name", "version", "engine")}})
        await asyncio.wait({asyncio.create_task(stop.wait()), serving, batching}, return_when=asyncio.FIRST_COMPLETED)
        logger.info("draining", extra={"facts": {"inside": gate.num_inside}})
        gate.draining = service.draining = True
        for number in (signal.SIGINT, signal.SIGTERM):  # a second one does not wait for the last answers
            loop.add_signal_handler(number, lambda: setattr(server, "force_exit", True))
        await asyncio.sleep(GRACE)
        server.should_exit = True
        await serving
        if batching.done():  # which it never should
            batching.result()
        batching.cancel()
    finally:
        gc.unfreeze()
        await service.close()
        logger.info("stopped")


def _config(gate: Gate) -> uvicorn.Config:
    return uvicorn.Config(
        gate,
        http=Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=int(REQUEST_SECONDS) + 5,
    )


async def _opened(service: Service, stop: asyncio.Event) -> bool:
    """Open the model; False if a signal came before it was open."""
    opening = asyncio.create_task(service.crew.start())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({opening, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not opening.done():
        opening.cancel()
        return False
    stopping.cancel()
    try:
        opening.result()
    except CrashedError:
        raise ServeError(
            "the worker ended while it opened the model.", got="no answer.", hint="vitrail predict, which shows why."
        ) from None
    return True
