"""ONNX Runtime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vitrail.engine.exported import KEY, Run, damaged
from vitrail.errors import ExportError

FILE, TITLE, PACKAGE = "model.onnx", "ONNX Runtime", "onnxruntime"


def start(path: Path, threads: int) -> tuple[dict[str, Any], Run]:
    """What an exported file says of itself, and a function from pixels to logits."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)  # errors; they are raised too
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        facts = json.loads(session.get_modelmeta().custom_metadata_map[KEY])
    except Exception as error:  # noqa: BLE001 - ONNX Runtime raises its own kinds, which have no common name
        raise damaged(path, error) from None
    if [each.name for each in session.get_inputs()] != ["pixels"]:
        raise ExportError(f"{path} takes no pixels.", got="other inputs.", hint="a file of vitrail export.")
    return facts, lambda pixels: session.run(["logits"], {"pixels": pixels})[0]
