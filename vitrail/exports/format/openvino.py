"""OpenVINO: the fastest engine for Intel's and AMD's processors; a file of structure and one of weights."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from vitrail.engine.exported import KEY
from vitrail.exports.int8 import quantize
from vitrail.exports.traced import Traced, save

PACKAGES = ("onnx", "onnxscript")
PRECISIONS = ("fp32", "bf16", "int8")


def write(
    traced: Traced, path: Path, precision: str, facts: dict[str, Any], *, pixels: NDArray[Any], keep: Sequence[str]
) -> None:
    """Write the model. bf16 keeps weights in 16 bits; what int8 leaves over is computed in bf16 where that is had."""
    import openvino

    with tempfile.TemporaryDirectory(prefix="vitrail-") as folder:
        file = Path(folder) / "model.onnx"
        save(traced.proto, file)
        model = openvino.Core().read_model(file)
        if precision == "int8":
            model = quantize(model, pixels, keep=traced.nodes(keep))
        model.set_rt_info(json.dumps({**facts, "compute": "f32" if precision == "fp32" else "bf16"}), [KEY])
        openvino.save_model(model, path, compress_to_fp16=precision == "bf16")
