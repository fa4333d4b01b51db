"""Whether a specification fits the tensors of a file, found out before a model is built and memory is allocated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail import catalogue
from vitrail.errors import RunError
from vitrail.spec import Spec
from vitrail.weights.tensor_files import Shapes

COUNTS = {"depth", "decoder_depth", "layers", "units", "num_stages", "num_blocks"}  # of layers: each has tensors
MIN_LIMIT = 2**18  # numbers that any specification may have
MIN_LAYERS = 64  # the same for layers
MAX_PIXELS, MAX_TOKENS = 2**24, 2**18  # of one input
HINT = "the original file: specification and weights belong together."


def check_numbers(fields: Mapping[str, Any], shapes: Shapes, path: Path, name: str) -> None:
    """Refuse fields with more layers than a file has tensors, or with a size above the count of its numbers."""
    limit = max(MIN_LIMIT, sum(math.prod(shape) for shape in shapes.values()))
    for key, value in _iter_integers(fields, name):
        is_count = not COUNTS.isdisjoint(key.split("."))
        if abs(value) > (max(MIN_LAYERS, len(shapes)) if is_count else limit):
            raise RunError(
                f"{path} does not fit its weights.",
                got=f"{key}: {value}, with {len(shapes):,} tensors of {limit:,} numbers at most.",
                hint=HINT,
            )


def check_spec(spec: Spec, shapes: Shapes, path: Path) -> None:
    """Refuse a specification whose model has other tensors than a file, or takes inputs of an absurd size."""
    check_numbers(spec.model_dump(mode="json"), shapes, path, "model.spec")
    size, layout = getattr(spec, "image_size", ()), getattr(spec, "layout", None)
    if math.prod(size) > MAX_PIXELS or (layout is not None and layout.num_tokens > MAX_TOKENS):
        raise RunError(
            f"{path} describes a model of inputs that are too large.", got=f"model.spec.image_size: {size}.", hint=HINT
        )
    with catalogue.on_meta():
        expected = catalogue.build(spec).state_dict()
    check_shapes(expected, shapes, path, "model.spec")


def check_shapes(tensors: Mapping[str, Tensor], shapes: Shapes, path: Path, name: str) -> None:
    """Refuse a specification whose tensors, on the meta device, are not those of a file."""
    expected = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
    for key in sorted(expected.keys() | shapes.keys()):
        if expected.get(key) != shapes.get(key):
            raise RunError(
                f"{path} does not fit its weights.",
                got=f"{key}: {_describe(expected.get(key))} by {name}, {_describe(shapes.get(key))} stored.",
                hint=HINT,
            )


def _describe(shape: tuple[int, ...] | None) -> str:
    return "nothing" if shape is None else " x ".join(map(str, shape)) or "a number"


def _iter_integers(value: Any, name: str) -> Iterator[tuple[str, int]]:
    """All integers of nested fields, with their dotted names."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _iter_integers(each, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _iter_integers(each, name)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield name, value
