"""ONNX: one file that every runtime opens; labels and preprocessing are stored in its metadata."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from vitrail.engine.exported import KEY
from vitrail.exports.int8 import quantize
from vitrail.exports.tracing import Tracer, save

PACKAGES = ("onnx", "onnxscript")
PRECISIONS = ("fp32", "int8")


def write(
    tracer: Tracer,
    path: Path,
    precision: str,
    metadata: dict[str, Any],
    *,
    pixels: NDArray[Any],
    float_layers: Sequence[str],
) -> None:
    """Write the model."""
    model = copy.deepcopy(tracer.onnx_model)
    if precision == "int8":
        model = quantize(model, pixels, float_nodes=tracer.nodes(float_layers))
    for entry in list(model.metadata_props):
        model.metadata_props.remove(entry)
    model.metadata_props.add(key=KEY, value=json.dumps(metadata))
    for node in model.graph.node:  # the tracer's notes include paths of this machine
        del node.metadata_props[:]
        node.doc_string = ""
    save(model, path)
