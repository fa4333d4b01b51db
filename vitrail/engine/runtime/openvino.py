"""OpenVINO."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.engine.exported import KEY, Run, damaged

FILE, TITLE, PACKAGE = "model.xml", "OpenVINO", "openvino"


def start(path: Path, threads: int) -> tuple[dict[str, Any], Run]:
    """What an exported file says of itself, and a function from pixels to logits."""
    import openvino

    core = openvino.Core()

    @cache
    def request(alone: bool) -> Any:
        """A compiled model; for one picture of a known shape it is another one, which is faster."""
        given = model.clone()
        if alone:
            given.reshape({"pixels": openvino.PartialShape([1, *list(given.input("pixels").partial_shape)[1:]])})
        return core.compile_model(given, "CPU", settings).create_infer_request()

    try:
        model = core.read_model(path)
        facts = json.loads(model.get_rt_info([KEY]).astype(str))
        able = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            # Told in any case: else the plugin takes bfloat16 by itself, where the processor has it.
            "INFERENCE_PRECISION_HINT": "bf16" if facts["compute"] == "bf16" and "BF16" in able else "f32",
            "INFERENCE_NUM_THREADS": threads,
        }
        request(alone=False)
    except Exception as error:  # noqa: BLE001 - OpenVINO raises RuntimeError and kinds of its own
        raise damaged(path, error) from None

    def run(pixels: Any) -> Any:
        asked = request(alone=len(pixels) == 1 and not facts.get("dynamic"))
        asked.infer({"pixels": pixels}, share_inputs=True)
        return np.array(asked.get_tensor("logits").data)

    return facts, run
