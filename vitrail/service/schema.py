"""The words of the OpenAPI document: bodies, answers, and an example of each."""

from __future__ import annotations

from typing import Any

from vitrail.service.limits import BODY, IMAGES, PIXELS, SIDE

ABOUT = (
    "A Vision Transformer behind HTTP: labels with calibrated confidence, or unknown, and where the model looks. "
    f"Pictures are JPEG, PNG, WebP, BMP, GIF (first frame) or TIFF, told by content. Up to {BODY:,} bytes a request."
)
LIMITS = {"bytes": BODY, "images": IMAGES, "pixels": PIXELS, "side": SIDE}
MOST_WORDS = 1000  # of a list of classes, beyond which /v1/model has them alone
BINARY = {"type": "string", "format": "binary"}
RAW = {"application/octet-stream": {"schema": BINARY}, "image/*": {"schema": BINARY}}
NUMBER = {"type": "number", "minimum": 0, "maximum": 1}
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


IMAGES_BODY = {"requestBody": {"required": True, "content": {**RAW, **_form(minItems=1, maxItems=IMAGES)}}}
IMAGE_BODY = {"requestBody": {"required": True, "content": {**RAW, **_form(minItems=1, maxItems=1)}}}
ERROR = _object(
    error=_object(code=TEXT, message=TEXT, hint={"type": ["string", "null"]}),
    request_id=TEXT,
)
BAD_IMAGE = {
    "error": {"code": "bad_image", "message": "the picture is cut short. Got 1,024 bytes.", "hint": None},
    "request_id": "9f1c2ab34d5e6f70",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: _json(text, ERROR, BAD_IMAGE if status == 422 else None)
    for status, text in {
        400: "The request is no form, or holds no picture.",
        401: "The token is missing or wrong.",
        403: "A page of another site asked.",
        408: "The request did not arrive in time.",
        413: "Too many bytes or pictures.",
        415: "The body is compressed.",
        421: "A foreign Host.",
        422: "No picture could be read, or a parameter is wrong.",
        429: "The queue is full; Retry-After says when to come back.",
        503: "The service starts, stops, or had no answer in time.",
    }.items()
}
CALLED = _object(label=TEXT, confidence=NUMBER)
TOLD = _object(label=TEXT, labels=_list(TEXT), confidence=NUMBER, unknown={"type": "boolean"}, top=_list(CALLED))
REFUSED = _object(error=ERROR["properties"]["error"])
NAME = {"name": {"type": ["string", "null"]}}
PREDICTION = {"type": "object", "required": ["name"], "properties": NAME, "anyOf": [TOLD, REFUSED]}
CORGI = {
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
WHOSE = {"name": "deit_tiny_patch16_224", "version": "3f9a1c0b2d4e"}
PREDICTED: dict[int | str, dict[str, Any]] = {
    200: _json(
        "What the model says to each picture, in the order of the request.",
        _object(model=_object(name=TEXT, version=TEXT), predictions=_list(PREDICTION, minItems=1), request_id=TEXT),
        {"model": WHOSE, "predictions": [CORGI], "request_id": "9f1c2ab34d5e6f70"},
    ),
    **ERRORS,
}
EXPLAINED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A map over the grid of patches; `window` is the part of the picture that the model sees.",
        "content": {"application/json": {"schema": {"type": "object"}}, "image/png": {"schema": BINARY}},
    },
    **ERRORS,
}
COUNT = {"type": "integer", "minimum": 1}
MODEL: dict[int | str, dict[str, Any]] = {
    200: _json(
        "The model.",
        _object(name=TEXT, version=TEXT, engine=TEXT, num_classes=COUNT, labels=_list(TEXT), explains=_list(TEXT)),
    ),
    401: ERRORS[401],
}
ALIVE: dict[int | str, dict[str, Any]] = {200: _json("Alive.", _object(status=TEXT), {"status": "alive"})}
READY: dict[int | str, dict[str, Any]] = {
    200: _json("Ready.", _object(status=TEXT), {"status": "ready"}),
    503: ERRORS[503],
}
METRICS: dict[int | str, dict[str, Any]] = {
    200: {"description": "Counters.", "content": {"text/plain": {"schema": TEXT}}},
    401: ERRORS[401],
}


def complete(document: dict[str, Any], facts: dict[str, Any]) -> None:
    """What depends on the model that is served: the methods and the classes that it can be asked about."""
    number = {"type": "integer", "minimum": 0, "maximum": facts["num_classes"] - 1}
    label = {"type": "string", "enum": facts["labels"]} if facts["num_classes"] <= MOST_WORDS else TEXT
    known = {"method": {"type": "string", "enum": facts["explains"]}, "class": {"anyOf": [label, number]}}
    for parameter in document["paths"]["/v1/explain"]["post"]["parameters"]:
        if parameter["name"] in known and facts["explains"]:
            parameter["schema"] = known[parameter["name"]]
