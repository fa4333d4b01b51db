"""The life of the service: load the model, serve, and on a signal finish accepted requests and stop."""

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
from vitrail.service.admission import AdmissionMiddleware
from vitrail.service.app import Service, build_app
from vitrail.service.limits import MAX_CONNECTIONS, MAX_QUEUED_IMAGES, REQUEST_TIMEOUT
from vitrail.service.log import configure_logging
from vitrail.service.protocol import Protocol
from vitrail.service.worker_process import WorkerCrashedError

logger = logging.getLogger("vitrail.service")
GRACE = 0.5  # seconds in which new requests get 503, before idle connections are closed
KEEP_ALIVE = 30  # seconds that an idle connection stays open
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
    on_ready: Callable[[str, dict[str, Any]], None],
) -> None:
    """Serve until SIGTERM or SIGINT; `on_ready` gets the address and the model's facts once requests are accepted."""
    check_address(host, token)
    configure_logging(quiet=quiet)
    _raise_file_limit()
    listener = _bind(host, port)
    hosts = {*LOOPBACK, host.lower(), *(name.lower() for name in allow_hosts)}
    with listener, asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(listener, model, weights, token=token, hosts=hosts, latency=latency, on_ready=on_ready))


def check_address(host: str, token: str | None) -> None:
    """Require a token for addresses other than loopback, and reject tokens that could be guessed."""
    if token is not None and (len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token):
        raise ServeError(
            "the token is too short, or contains characters that HTTP headers cannot carry.",
            got=f"{len(token)} characters.",
            hint="16 characters or more: python -c 'import secrets; print(secrets.token_urlsafe())'.",
        )
    if token is None and not _is_loopback(host):
        raise ServeError(
            "an address other than loopback requires a token.",
            got=f"--host {host}.",
            hint="setting VITRAIL_TOKEN, or --token-file.",
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _bind(host: str, port: int) -> socket.socket:
    listener = None
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(*family[:3])
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(family[4])
    except (OSError, OverflowError) as error:
        if listener is not None:
            listener.close()
        raise ServeError(
            f"cannot listen on {host}:{port}.", got=f"{error}.", hint="another --port, or 0 for any free port."
        ) from None
    return listener


def _raise_file_limit() -> None:
    """Allow enough open files for all connections, if the system permits; many default to 256 or 1,024."""
    try:
        import resource
    except ImportError:  # not on every system
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MAX_CONNECTIONS if hard == resource.RLIM_INFINITY else min(2 * MAX_CONNECTIONS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not available on every system
        return None
    return uvloop.new_event_loop


class Server(uvicorn.Server):
    """uvicorn's server without its signal handling; `_serve` handles signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signal handlers as they are."""
        yield


async def _serve(
    listener: socket.socket,
    model: str,
    weights: str | None,
    *,
    token: str | None,
    hosts: set[str],
    latency: float,
    on_ready: Callable[[str, dict[str, Any]], None],
) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    service = Service(model, weights, latency=latency)
    try:
        if not await _load_model(service, stop):
            return
        app = AdmissionMiddleware(
            build_app(service),
            hosts=hosts,
            token=token,
            metrics=service.metrics,
            queue_full=lambda: service.batcher.num_waiting >= MAX_QUEUED_IMAGES,
        )
        server = Server(_config(app))
        service.batcher.set_initial_limit(service.worker.facts["seconds"])
        gc.collect()
        gc.freeze()  # everything allocated so far stays: a collection that scans it would take 50 ms under load
        listener.listen(server.config.backlog)  # before the address is announced: clients may connect at once
        batching = asyncio.create_task(service.batcher.run())
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        host, port = listener.getsockname()[:2]
        on_ready(f"http://{f'[{host}]' if ':' in host else host}:{port}", service.worker.facts)
        sys.stdout.flush()  # so that a reader of a pipe gets the address now
        logger.info("ready", extra={"facts": {key: service.worker.facts[key] for key in ("name", "version", "engine")}})
        await asyncio.wait({asyncio.create_task(stop.wait()), serving, batching}, return_when=asyncio.FIRST_COMPLETED)
        logger.info("draining", extra={"facts": {"in_flight": app.num_in_flight}})
        app.draining = service.draining = True
        for number in (signal.SIGINT, signal.SIGTERM):  # a second signal stops without waiting for responses
            loop.add_signal_handler(number, lambda: setattr(server, "force_exit", True))
        await asyncio.sleep(GRACE)
        server.should_exit = True
        await serving
        if batching.done():  # it should run forever
            batching.result()
        batching.cancel()
    finally:
        gc.unfreeze()
        await service.close()
        logger.info("stopped")


def _config(app: AdmissionMiddleware) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=int(REQUEST_TIMEOUT) + 5,
    )


async def _load_model(service: Service, stop: asyncio.Event) -> bool:
    """Start the worker; False if a signal arrived first."""
    loading = asyncio.create_task(service.start())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not loading.done():
        loading.cancel()
        return False
    stopping.cancel()
    try:
        loading.result()
    except WorkerCrashedError:
        raise ServeError(
            "the worker crashed while loading the model.",
            got="no response.",
            hint="vitrail predict, which shows the cause.",
        ) from None
    return True
