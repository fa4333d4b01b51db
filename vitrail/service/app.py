"""The application behind the gate: what can be asked, and what is answered."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Sequence
from importlib import metadata
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from vitrail.errors import VitrailError
from vitrail.service import schema
from vitrail.service.batcher import Batcher
from vitrail.service.form import Named, files_of
from vitrail.service.limits import EXPLAINING, REQUEST_SECONDS, STATUS, Refusal, too_busy
from vitrail.service.metrics import Metrics
from vitrail.service.worker_process import CrashedError, WorkerProcess

INDEX = "index.html"
VIEW = ("make.js", "overlay.js", "looks.js", "view.js", "view.css")  # which the page shares with `vitrail explain`
KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
JSON = "application/json"


class Service:
    """The workers and the queue that the application stands on; explaining has a worker of its own."""

    def __init__(self, model: str, weights: str | None, *, latency: float) -> None:
        self.metrics = Metrics()
        self.crew = WorkerProcess(model, weights)
        self.explainer = WorkerProcess(model, weights)
        self.batcher = Batcher(self._look, latency=latency, told=self.metrics.batch)
        self.draining = False
        self._num_explaining = 0

    async def _look(self, contents: Sequence[bytes], top: int) -> list[dict[str, Any]]:
        document, _ = await self.crew.call("predict", contents, top=top)
        return document["answers"]

    async def explain(self, content: bytes, **asked: Any) -> tuple[dict[str, Any], list[bytes]]:
        """One picture explained, as soon as those before it are."""
        if self._num_explaining >= EXPLAINING:
            raise too_busy()
        self._num_explaining += 1
        try:
            await self._second_worker()
            return await self.explainer.call("explain", [content], **asked)
        except CrashedError:
            raise Refusal("bad_image", "this picture cannot be explained.", "another picture.") from None
        finally:
            self._num_explaining -= 1

    async def _second_worker(self) -> None:
        """Whoever asks first waits for it."""
        try:
            await self.explainer.start_once()
        except (CrashedError, VitrailError):
            raise Refusal(
                "starting", "the model cannot be opened just now.", "a little later.", retry_after=5
            ) from None

    async def close(self) -> None:
        """End the workers."""
        await asyncio.gather(self.crew.close(), self.explainer.close())


def build(service: Service) -> FastAPI:
    """The application of a service."""
    # No pages of documentation: their scripts would come from another site.
    app = FastAPI(
        title="Vitrail",
        version=metadata.version("vitrail"),
        description=schema.ABOUT,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    _add_errors(app)
    _add_health(app, service)
    _add_page(app)
    _add_answers(app, service)
    schema.complete(app.openapi(), service.crew.facts)
    return app


def _add_answers(app: FastAPI, service: Service) -> None:
    @app.post("/v1/predict", openapi_extra=schema.IMAGES_BODY, responses=schema.PREDICTED, tags=["model"])
    async def predict(request: Request, top: Annotated[int, Query(ge=1, le=1000)] = 5) -> Response:
        """Labels of one to sixteen pictures: the raw body is one, or each file of a multipart form."""
        named = await _contents(request)
        answers = service.batcher.put([content for _, content in named], top, _until(request))
        told = await _unless_gone(request, asyncio.gather(*answers))
        rows = [{"name": name, **answer} for (name, _), answer in zip(named, told, strict=True)]
        if all("error" in row for row in rows):  # nothing could be read: the request as a whole was wrong
            raise Refusal(**rows[0]["error"])
        facts = service.crew.facts
        model = {"name": facts["name"], "version": facts["version"]}
        return _json({"model": model, "predictions": rows, "request_id": request.state.request_id})

    @app.post("/v1/explain", openapi_extra=schema.IMAGE_BODY, responses=schema.EXPLAINED, tags=["model"])
    async def explain(
        request: Request,
        method: Annotated[
            str | None, Query(max_length=40, description="By default the first that the model has.")
        ] = None,
        form: Annotated[Literal["numbers", "png", "view"], Query()] = "numbers",
        about: Annotated[
            str | None, Query(alias="class", max_length=200, description="By default the likeliest one.")
        ] = None,
    ) -> Response:
        """Where in a picture the model looks: a map of numbers, a PNG, or all that the page draws from."""
        known = service.crew.facts["explains"]
        if not known:
            raise Refusal(
                "cannot_explain", "this model gives labels only.", "serving the run that it was exported from."
            )
        if method is not None and method not in known:
            raise Refusal("bad_parameter", f"no such method: {method!r}.", f"{', '.join(known)}.")
        named = await _contents(request)
        if len(named) != 1:
            raise Refusal("too_many_images", "one picture at a time is explained.", "a request for each.")
        asked = {"form": form, "method": method or known[0], "about": about}
        document, contents = await _unless_gone(request, service.explain(named[0][1], **asked))
        if "error" in document:
            raise Refusal(**document["error"])
        if form == "png":
            return Response(contents[0], media_type="image/png")
        return _json(document["view"] if form == "view" else {**document, "request_id": request.state.request_id})

    @app.get("/v1/model", responses=schema.MODEL, tags=["model"])
    async def model() -> Response:
        """What is served: labels, sizes, limits, and the model's card."""
        return _json({**service.crew.facts, "limits": schema.LIMITS})


def _add_health(app: FastAPI, service: Service) -> None:
    @app.get("/livez", responses=schema.ALIVE, tags=["health"])
    async def livez() -> Response:
        """Whether the process answers at all."""
        return _json({"status": "alive"})

    @app.get("/readyz", responses=schema.READY, tags=["health"])
    async def readyz() -> Response:
        """Whether pictures are taken just now."""
        if service.draining:
            raise Refusal("draining", "the service is being stopped.", retry_after=5)
        if not service.crew.ready:
            raise Refusal("starting", "the model is being opened.", retry_after=2)
        return _json({"status": "ready"})

    @app.get("/metrics", responses=schema.METRICS, tags=["health"])
    async def metrics() -> Response:
        """Counters for Prometheus."""
        service.metrics.waiting.set(service.batcher.num_waiting)
        service.metrics.restarts.set(service.crew.restarts + service.explainer.restarts)
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_page(app: FastAPI) -> None:
    own, shared = files("vitrail.service").joinpath("page"), files("vitrail.inspection")
    static = {file.name: file.read_bytes() for file in own.iterdir() if file.name != INDEX}
    static |= {name: shared.joinpath(name).read_bytes() for name in VIEW}
    index = own.joinpath(INDEX).read_bytes()

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return Response(index, media_type="text/html", headers={"cache-control": "no-cache"})

    @app.get("/static/{name}", include_in_schema=False)
    async def file(name: str) -> Response:
        if name not in static:
            raise Refusal("not_found", "there is no such file.")
        kind = KINDS[PurePosixPath(name).suffix]
        return Response(static[name], media_type=kind, headers={"cache-control": "no-cache"})


def _add_errors(app: FastAPI) -> None:
    by_status = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}

    @app.exception_handler(Refusal)
    async def refused(request: Request, refusal: Refusal) -> Response:
        retry = {} if refusal.retry_after is None else {"retry-after": str(refusal.retry_after)}
        return _json(refusal.document(request.state.request_id), refusal.status, retry)

    @app.exception_handler(Exception)
    async def broken(request: Request, _: Exception) -> Response:  # the gate tells the log
        refusal = Refusal("internal", "a fault of the service.", "a report of it, with the request_id.")
        return _json(refusal.document(request.state.request_id), refusal.status)

    @app.exception_handler(HTTPException)
    async def failed(request: Request, error: HTTPException) -> Response:
        refusal = Refusal(by_status.get(error.status_code, "bad_request"), f"{error.detail}.".lower())
        headers = dict(error.headers or {})
        return _json(refusal.document(request.state.request_id), STATUS[refusal.code], headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        wrong = f"{first['loc'][-1]}: {first['msg']}."
        return _json(Refusal("bad_parameter", wrong).document(request.state.request_id), 422)


def _json(document: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(document), status, headers, JSON)


def _until(request: Request) -> float:
    return float(request.state.started + REQUEST_SECONDS)


async def _contents(request: Request) -> list[Named]:
    """The pictures of a request and the names that their files are said to have."""
    try:
        content = await request.body()
    except ClientDisconnect:
        raise Refusal("client_gone", "the client has left.") from None
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() == "multipart/form-data":
        return files_of(content, kind)
    if not content:
        raise Refusal("bad_request", "there is no picture in the body.", "the bytes of a picture, or a form of files.")
    return [(None, content)]


async def _unless_gone(request: Request, answer: Awaitable[Any]) -> Any:
    """The answer; if the client leaves before it, or it takes too long, nobody waits for it any more."""
    answer = asyncio.ensure_future(answer)
    leaving = asyncio.ensure_future(_left(request))
    try:
        seconds = max(0.0, _until(request) - time.monotonic())
        await asyncio.wait({answer, leaving}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        if leaving.done():
            raise Refusal("client_gone", "the client has left.")
        raise Refusal("deadline", f"there was no answer within {REQUEST_SECONDS:.0f} s.", retry_after=1)
    finally:
        leaving.cancel()
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())  # asyncio wants it looked at
        answer.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
