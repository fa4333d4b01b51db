"""OpenVINO: the fastest engine for Intel and AMD processors; one file for the graph and one for the weights."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from vitrail.engine.exported import KEY
from vitrail.exports.int8 import quantize
from vitrail.exports.tracing import Tracer, save

PACKAGES = ("onnx", "onnxscript")
PRECISIONS = ("fp32", "bf16", "int8")


def write(
    tracer: Tracer,
    path: Path,
    precision: str,
    metadata: dict[str, Any],
    *,
    pixels: NDArray[Any],
    float_layers: Sequence[str],
) -> None:
    """Write the model. bf16 stores weights in 16 bits; layers that int8 leaves in float run in bf16 if possible."""
    import openvino

    with tempfile.TemporaryDirectory(prefix="vitrail-") as folder:
        file = Path(folder) / "model.onnx"
        save(tracer.onnx_model, file)
        model = openvino.Core().read_model(file)
        if precision == "int8":
            model = quantize(model, pixels, float_nodes=tracer.nodes(float_layers))
        model.set_rt_info(json.dumps({**metadata, "compute": "f32" if precision == "fp32" else "bf16"}), [KEY])
        openvino.save_model(model, path, compress_to_fp16=precision == "bf16")
