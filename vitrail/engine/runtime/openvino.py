"""OpenVINO."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.engine.exported import KEY, InferFn, invalid_export, parse_facts

FILE, TITLE, PACKAGE = "model.xml", "OpenVINO", "openvino"


def start(path: Path, threads: int) -> tuple[dict[str, Any], InferFn]:
    """Open an exported file; return its metadata and a function from pixels to logits."""
    import openvino

    core = openvino.Core()

    @cache
    def infer_request(single: bool) -> Any:
        """A request for a compiled model; with a fixed batch size of 1 it is faster."""
        compiled = model.clone()
        if single:
            compiled.reshape({"pixels": openvino.PartialShape([1, *list(compiled.input("pixels").partial_shape)[1:]])})
        return core.compile_model(compiled, "CPU", settings).create_infer_request()

    try:
        model = core.read_model(path)
        facts = parse_facts(model.get_rt_info([KEY]).astype(str))
        capabilities = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            # Always set: otherwise the plugin uses bfloat16 wherever the processor supports it.
            "INFERENCE_PRECISION_HINT": "bf16" if facts["compute"] == "bf16" and "BF16" in capabilities else "f32",
            "INFERENCE_NUM_THREADS": threads,
        }
        infer_request(single=False)
    except Exception as error:  # noqa: BLE001 - OpenVINO raises RuntimeError and its own exceptions
        raise invalid_export(path, error) from None

    def run(pixels: Any) -> Any:
        request = infer_request(single=len(pixels) == 1 and not facts.get("dynamic"))
        request.infer({"pixels": pixels}, share_inputs=True)
        return np.array(request.get_tensor("logits").data)

    return facts, run
