"""ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitrail.engine.exported import KEY, InferFn, invalid_export, parse_facts
from vitrail.errors import ExportError

FILE, TITLE, PACKAGE = "model.onnx", "ONNX Runtime", "onnxruntime"


def start(path: Path, threads: int) -> tuple[dict[str, Any], InferFn]:
    """Open an exported file; return its metadata and a function from pixels to logits."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)  # errors only; they are raised as well
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        facts = parse_facts(session.get_modelmeta().custom_metadata_map[KEY])
    except Exception as error:  # noqa: BLE001 - ONNX Runtime's exceptions have no common base class
        raise invalid_export(path, error) from None
    if [node.name for node in session.get_inputs()] != ["pixels"]:
        raise ExportError(
            f"{path} has no input named pixels.", got="other inputs.", hint="a file written by vitrail export."
        )
    return facts, lambda pixels: session.run(["logits"], {"pixels": pixels})[0]
