"""ONNX: one file that every runtime opens; what Vitrail knows of the model stands in its metadata."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from vitrail.engine.exported import KEY
from vitrail.exports.int8 import quantize
from vitrail.exports.traced import Traced, save

PACKAGES = ("onnx", "onnxscript")
PRECISIONS = ("fp32", "int8")


def write(
    traced: Traced, path: Path, precision: str, facts: dict[str, Any], *, pixels: NDArray[Any], keep: Sequence[str]
) -> None:
    """Write the model."""
    proto = copy.deepcopy(traced.proto)
    if precision == "int8":
        proto = quantize(proto, pixels, keep=traced.nodes(keep))
    for entry in list(proto.metadata_props):
        proto.metadata_props.remove(entry)
    proto.metadata_props.add(key=KEY, value=json.dumps(facts))
    for node in proto.graph.node:  # the tracer's notes, with paths of this machine among them
        del node.metadata_props[:]
        node.doc_string = ""
    save(proto, path)
