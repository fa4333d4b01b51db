"""The FastAPI application: endpoints, page and error handlers."""

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

from vitrail.errors import DataError, VitrailError
from vitrail.service import schema
from vitrail.service.batcher import Batcher
from vitrail.service.form import NamedFile, parse_files
from vitrail.service.intake import Intake, PreparedPixels, check_cost
from vitrail.service.jobs import error_document
from vitrail.service.limits import (
    MAX_QUEUED_EXPLANATIONS,
    REQUEST_TIMEOUT,
    STATUS,
    ApiError,
    internal_error,
    too_busy,
)
from vitrail.service.metrics import Metrics
from vitrail.service.worker_process import WorkerCrashedError, WorkerProcess

INDEX = "index.html"
SHARED_FILES = ("make.js", "overlay.js", "explanation.js", "view.js", "view.css")  # also used by `vitrail explain`
MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
JSON = "application/json"


class Service:
    """The workers and the queue behind the application; explanations and costly images have their own workers."""

    def __init__(self, model: str, weights: str | None, *, latency: float) -> None:
        self.metrics = Metrics()
        model_args = {"model": model, "weights": weights}
        self.worker = WorkerProcess("vitrail.service.worker", model_args)
        self.explainer = WorkerProcess("vitrail.service.worker", model_args)
        self.preparer = WorkerProcess("vitrail.service.preparer")
        self.batcher = Batcher(self._predict, latency=latency, on_batch=self.metrics.observe_batch)
        self.intake = Intake(self.batcher, self.preparer)
        self.draining = False
        self._num_explaining = 0

    async def start(self) -> None:
        """Load the model; what decodes costly images starts in the background."""
        await self.worker.start()
        self.preparer.arguments = {"preprocess": self.worker.preprocess}
        self.preparer.start_soon()

    async def _predict(self, contents: Sequence[bytes], top: int) -> list[dict[str, Any]]:
        prepared = [number for number, content in enumerate(contents) if isinstance(content, PreparedPixels)]
        document, _ = await self.worker.call("predict", contents, top=top, prepared=prepared)
        return document["predictions"]

    async def explain(self, content: bytes, **options: Any) -> tuple[dict[str, Any], list[bytes]]:
        """Explain one image, after those ahead of it in the queue."""
        try:
            check_cost(content)
        except DataError as error:
            raise ApiError(**error_document("bad_image", error)["error"]) from None
        if self._num_explaining >= MAX_QUEUED_EXPLANATIONS:
            raise too_busy()
        self._num_explaining += 1
        try:
            await self._ensure_explainer()
            return await self.explainer.call("explain", [content], **options)
        except WorkerCrashedError:
            raise ApiError("bad_image", "this image cannot be explained.", "another image.") from None
        finally:
            self._num_explaining -= 1

    async def _ensure_explainer(self) -> None:
        """Start the second worker on the first request for an explanation."""
        try:
            await self.explainer.ensure_started()
        except (WorkerCrashedError, VitrailError):
            raise ApiError(
                "starting", "the model cannot be loaded right now.", "again in a moment.", retry_after=5
            ) from None

    async def close(self) -> None:
        """Stop the workers."""
        await asyncio.gather(self.worker.close(), self.explainer.close(), self.preparer.close(seconds=0.0))


def build_app(service: Service) -> FastAPI:
    """The application of a service."""
    # No interactive API docs: they would load scripts from another site.
    app = FastAPI(
        title="Vitrail",
        version=metadata.version("vitrail"),
        description=schema.DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    _add_errors(app)
    _add_health(app, service)
    _add_page(app)
    _add_endpoints(app, service)
    schema.add_model_choices(app.openapi(), service.worker.facts)
    return app


def _add_endpoints(app: FastAPI, service: Service) -> None:
    @app.post("/v1/predict", openapi_extra=schema.IMAGES_BODY, responses=schema.PREDICT_RESPONSES, tags=["model"])
    async def predict(request: Request, top: Annotated[int, Query(ge=1, le=1000)] = 5) -> Response:
        """Predict the labels of 1 to 16 images, sent as a raw body or as the files of a multipart form."""
        images = await _read_images(request)
        work = service.intake.predict([content for _, content in images], top, _deadline(request))
        predictions = await _wait_for(request, work)
        rows = [{"name": name, **prediction} for (name, _), prediction in zip(images, predictions, strict=True)]
        if all("error" in row for row in rows):  # no image could be read: the request as a whole fails
            raise ApiError(**rows[0]["error"])
        facts = service.worker.facts
        model = {"name": facts["name"], "version": facts["version"]}
        return _json({"model": model, "predictions": rows, "request_id": request.state.request_id})

    @app.post("/v1/explain", openapi_extra=schema.IMAGE_BODY, responses=schema.EXPLAIN_RESPONSES, tags=["model"])
    async def explain(
        request: Request,
        method: Annotated[
            str | None, Query(max_length=40, description="Default: the first method that the model supports.")
        ] = None,
        form: Annotated[Literal["numbers", "png", "view"], Query()] = "numbers",
        class_name: Annotated[
            str | None, Query(alias="class", max_length=200, description="Default: the top prediction.")
        ] = None,
    ) -> Response:
        """Show which regions of an image drive the prediction: as numbers, a PNG, or data for the interactive view."""
        methods = service.worker.facts["explains"]
        if not methods:
            raise ApiError(
                "cannot_explain", "this model cannot be explained.", "serving the run that it was exported from."
            )
        if method is not None and method not in methods:
            raise ApiError("bad_parameter", f"unknown method: {method!r}.", f"{', '.join(methods)}.")
        images = await _read_images(request)
        if len(images) != 1:
            raise ApiError("too_many_images", "only one image can be explained at a time.", "one request per image.")
        options = {"form": form, "method": method or methods[0], "class_name": class_name}
        document, contents = await _wait_for(request, service.explain(images[0][1], **options))
        if "error" in document:
            raise ApiError(**document["error"])
        if form == "png":
            return Response(contents[0], media_type="image/png")
        return _json(document["view"] if form == "view" else {**document, "request_id": request.state.request_id})

    @app.get("/v1/model", responses=schema.MODEL_RESPONSES, tags=["model"])
    async def model() -> Response:
        """Describe the model: name, version, labels, input size, limits, model card."""
        return _json({**service.worker.facts, "limits": schema.LIMITS})


def _add_health(app: FastAPI, service: Service) -> None:
    @app.get("/livez", responses=schema.LIVEZ_RESPONSES, tags=["health"])
    async def livez() -> Response:
        """Check that the process responds."""
        return _json({"status": "alive"})

    @app.get("/readyz", responses=schema.READYZ_RESPONSES, tags=["health"])
    async def readyz() -> Response:
        """Check that requests are accepted."""
        if service.draining:
            raise ApiError("draining", "the service is shutting down.", retry_after=5)
        if not service.worker.ready:
            raise ApiError("starting", "the model is loading.", retry_after=2)
        return _json({"status": "ready"})

    @app.get("/metrics", responses=schema.METRICS_RESPONSES, tags=["health"])
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        service.metrics.queued_images.set(service.batcher.num_waiting)
        workers = (service.worker, service.explainer, service.preparer)
        service.metrics.restarts.set(sum(worker.restarts for worker in workers))
        return Response(service.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_page(app: FastAPI) -> None:
    own, shared = files("vitrail.service").joinpath("page"), files("vitrail.inspection")
    static = {file.name: file.read_bytes() for file in own.iterdir() if file.name != INDEX}
    static |= {name: shared.joinpath(name).read_bytes() for name in SHARED_FILES}
    index = own.joinpath(INDEX).read_bytes()

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return Response(index, media_type="text/html", headers={"cache-control": "no-cache"})

    @app.get("/static/{name}", include_in_schema=False)
    async def file(name: str) -> Response:
        if name not in static:
            raise ApiError("not_found", "this file does not exist.")
        media_type = MEDIA_TYPES[PurePosixPath(name).suffix]
        return Response(static[name], media_type=media_type, headers={"cache-control": "no-cache"})


def _add_errors(app: FastAPI) -> None:
    by_status = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}

    @app.exception_handler(ApiError)
    async def on_api_error(request: Request, error: ApiError) -> Response:
        headers = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
        return _json(error.document(request.state.request_id), error.status, headers)

    @app.exception_handler(Exception)
    async def on_exception(request: Request, _: Exception) -> Response:  # the middleware logs it
        error = internal_error()
        return _json(error.document(request.state.request_id), error.status)

    @app.exception_handler(HTTPException)
    async def on_http_exception(request: Request, exception: HTTPException) -> Response:
        error = ApiError(by_status.get(exception.status_code, "bad_request"), f"{exception.detail}.".lower())
        headers = dict(exception.headers or {})
        return _json(error.document(request.state.request_id), STATUS[error.code], headers)

    @app.exception_handler(RequestValidationError)
    async def on_validation_error(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        message = f"{first['loc'][-1]}: {first['msg']}."
        return _json(ApiError("bad_parameter", message).document(request.state.request_id), 422)


def _json(document: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(document), status, headers, JSON)


def _deadline(request: Request) -> float:
    return float(request.state.started + REQUEST_TIMEOUT)


async def _read_images(request: Request) -> list[NamedFile]:
    """The images of a request, with their file names if it is a form."""
    try:
        content = await request.body()
    except ClientDisconnect:
        raise ApiError("client_gone", "the client has disconnected.") from None
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() == "multipart/form-data":
        return parse_files(content, content_type)
    if not content:
        raise ApiError(
            "bad_request", "the body contains no image.", "sending the bytes of an image, or a form of files."
        )
    return [(None, content)]


async def _wait_for(request: Request, work: Awaitable[Any]) -> Any:
    """Await a result; cancel it if the client disconnects or the request times out."""
    result = asyncio.ensure_future(work)
    disconnect = asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        seconds = max(0.0, _deadline(request) - time.monotonic())
        await asyncio.wait({result, disconnect}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if result.done():
            return result.result()
        if disconnect.done():
            raise ApiError("client_gone", "the client has disconnected.")
        raise ApiError("deadline", f"the request timed out after {REQUEST_TIMEOUT:.0f} s.", retry_after=1)
    finally:
        disconnect.cancel()
        result.add_done_callback(lambda done: done.cancelled() or done.exception())  # or asyncio warns about it
        result.cancel()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
