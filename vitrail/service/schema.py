"""The OpenAPI document: request bodies, responses and examples."""

from __future__ import annotations

from typing import Any

from vitrail.data.decode import MAX_PIXELS, MAX_SIDE
from vitrail.service.limits import MAX_BODY_BYTES, MAX_IMAGES

DESCRIPTION = (
    "A Vision Transformer over HTTP: labels with calibrated confidence, detection of unknown images, and explanations. "
    "Accepts JPEG, PNG, WebP, BMP, GIF (first frame) and TIFF, detected by content. "
    f"At most {MAX_BODY_BYTES:,} bytes per request."
)
LIMITS = {"bytes": MAX_BODY_BYTES, "images": MAX_IMAGES, "pixels": MAX_PIXELS, "side": MAX_SIDE}
MAX_ENUM_LABELS = 1000  # beyond this only /v1/model lists the classes
BINARY = {"type": "string", "format": "binary"}
RAW = {"application/octet-stream": {"schema": BINARY}, "image/*": {"schema": BINARY}}
PROBABILITY = {"type": "number", "minimum": 0, "maximum": 1}
TEXT = {"type": "string"}


def _object(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(fields), "properties": fields}


def _list(items: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


def _form(**bounds: int) -> dict[str, Any]:
    return {"multipart/form-data": {"schema": _object(image=_list(BINARY, **bounds))}}


def _json(text: str, schema: dict[str, Any], example: Any = None) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": schema}
    return {"description": text, "content": {"application/json": content | ({"example": example} if example else {})}}


IMAGES_BODY = {"requestBody": {"required": True, "content": {**RAW, **_form(minItems=1, maxItems=MAX_IMAGES)}}}
IMAGE_BODY = {"requestBody": {"required": True, "content": {**RAW, **_form(minItems=1, maxItems=1)}}}
ERROR = _object(
    error=_object(code=TEXT, message=TEXT, hint={"type": ["string", "null"]}),
    request_id=TEXT,
)
BAD_IMAGE = {
    "error": {"code": "bad_image", "message": "this file is damaged or truncated. Got 1,024 bytes.", "hint": None},
    "request_id": "9f1c2ab34d5e6f70",
}
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: _json(text, ERROR, BAD_IMAGE if status == 422 else None)
    for status, text in {
        400: "The request is malformed or contains no image.",
        401: "The token is missing or wrong.",
        403: "The request came from a page of another site.",
        408: "The request did not arrive in time.",
        413: "Too many bytes or images.",
        415: "The body is compressed.",
        421: "The Host is not allowed.",
        422: "No image could be read, or a parameter is invalid.",
        429: "The queue is full; Retry-After says when to try again.",
        503: "The service is starting, shutting down, or timed out.",
    }.items()
}
SCORED_LABEL = _object(label=TEXT, confidence=PROBABILITY)
RESULT = _object(
    label=TEXT, labels=_list(TEXT), confidence=PROBABILITY, unknown={"type": "boolean"}, top=_list(SCORED_LABEL)
)
FAILURE = _object(error=ERROR["properties"]["error"])
NAME = {"name": {"type": ["string", "null"]}}
PREDICTION = {"type": "object", "required": ["name"], "properties": NAME, "anyOf": [RESULT, FAILURE]}
EXAMPLE_PREDICTION = {
    "name": "dog.jpg",
    "label": "Pembroke Welsh Corgi",
    "labels": ["Pembroke Welsh Corgi"],
    "confidence": 0.93,
    "unknown": False,
    "top": [
        {"label": "Pembroke Welsh Corgi", "confidence": 0.93},
        {"label": "Cardigan Welsh Corgi", "confidence": 0.05},
    ],
}
EXAMPLE_MODEL = {"name": "deit_tiny_patch16_224", "version": "3f9a1c0b2d4e"}
PREDICT_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: _json(
        "A prediction for each image, in the order of the request.",
        _object(model=_object(name=TEXT, version=TEXT), predictions=_list(PREDICTION, minItems=1), request_id=TEXT),
        {"model": EXAMPLE_MODEL, "predictions": [EXAMPLE_PREDICTION], "request_id": "9f1c2ab34d5e6f70"},
    ),
    **ERROR_RESPONSES,
}
EXPLAIN_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A map over the grid of patches; `window` is the part of the image that the model sees.",
        "content": {"application/json": {"schema": {"type": "object"}}, "image/png": {"schema": BINARY}},
    },
    **ERROR_RESPONSES,
}
COUNT = {"type": "integer", "minimum": 1}
MODEL_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: _json(
        "The model.",
        _object(name=TEXT, version=TEXT, engine=TEXT, num_classes=COUNT, labels=_list(TEXT), explains=_list(TEXT)),
    ),
    401: ERROR_RESPONSES[401],
}
LIVEZ_RESPONSES: dict[int | str, dict[str, Any]] = {200: _json("Alive.", _object(status=TEXT), {"status": "alive"})}
READYZ_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: _json("Ready.", _object(status=TEXT), {"status": "ready"}),
    503: ERROR_RESPONSES[503],
}
METRICS_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "Metrics.", "content": {"text/plain": {"schema": TEXT}}},
    401: ERROR_RESPONSES[401],
}


def add_model_choices(document: dict[str, Any], facts: dict[str, Any]) -> None:
    """Fill in what depends on the served model: the methods and classes that it can explain."""
    number = {"type": "integer", "minimum": 0, "maximum": facts["num_classes"] - 1}
    label = {"type": "string", "enum": facts["labels"]} if facts["num_classes"] <= MAX_ENUM_LABELS else TEXT
    choices = {"method": {"type": "string", "enum": facts["explains"]}, "class": {"anyOf": [label, number]}}
    for parameter in document["paths"]["/v1/explain"]["post"]["parameters"]:
        if parameter["name"] in choices and facts["explains"]:
            parameter["schema"] = choices[parameter["name"]]
