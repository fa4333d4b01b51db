"""The public description of a model: name, version, sizes, labels and abilities."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitrail import plug
from vitrail.engine.exported import ExportedModel, ImageModel
from vitrail.run.artefact import WEIGHTS, is_run
from vitrail.run.predictor import calibration_of, labels_of

CARD = "README.md"
VERSION_DIGITS = 12
MAX_CARD_BYTES = 2**18


def describe_model(model: ImageModel, path: str, weights: str | None) -> dict[str, Any]:
    """Describe an opened model; `path` and `weights` are the arguments it was opened with."""
    calibration, labels = calibration_of(model), labels_of(model)
    if isinstance(model, ExportedModel):
        file, engine, methods = model.file, model.engine, []
    else:
        file = Path(path) / WEIGHTS if is_run(path) else Path(weights or path)
        engine = "PyTorch fp32"
        methods = plug.import_from("vitrail.inspection.explanation", "available_methods")(model)
    return {
        "name": model.name or Path(path).name,
        "version": hash_model(file, model),
        "engine": engine,
        "input_size": list(model.preprocess.size),
        "num_classes": len(labels),
        "labels": list(labels),
        "multi_label": calibration.multi_label,
        "calibrated": calibration.n > 0,
        "knows_unknown": calibration.limit is not None,
        "explains": methods,
        "card": _read_card(Path(path)),
    }


def hash_model(file: Path, model: nn.Module) -> str:
    """The first digits of the hash of a model's file and the weights beside it or, without a file, of its tensors."""
    digest = hashlib.sha256()
    beside = {".xml": (file.with_suffix(".bin"),), ".onnx": (file.with_name(f"{file.name}.data"),)}
    for each in (file, *beside.get(file.suffix, ())):
        if each.is_file():
            with each.open("rb") as content:
                while block := content.read(2**20):
                    digest.update(block)
    if not file.is_file():
        for tensor in model.state_dict().values():
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:VERSION_DIGITS]


def _read_card(folder: Path) -> str | None:
    card = folder / CARD
    if not card.is_file():
        return None
    return card.read_bytes()[:MAX_CARD_BYTES].decode("utf-8", "replace")
