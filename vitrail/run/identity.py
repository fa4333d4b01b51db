"""What a model is, for those who use it from outside: names, sizes, labels, a version that tells its files apart."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch

from vitrail import plug
from vitrail.run.artefact import WEIGHTS, is_run
from vitrail.run.predictor import calibration_of, labels_of

CARD = "README.md"
DIGITS = 12
LONGEST_CARD = 2**18


def facts_of(model: Any, asked: str, weights: str | None) -> dict[str, Any]:
    """The facts of an opened model; `asked` and `weights` are what it was opened by."""
    calibration, labels = calibration_of(model), labels_of(model)
    exported = getattr(model, "file", None)
    file = exported or (Path(asked) / WEIGHTS if is_run(asked) else Path(weights or asked))
    able = [] if exported else plug.member("vitrail.inspection.explanation", "able_methods")(model)
    return {
        "name": getattr(model, "name", "") or Path(asked).name,
        "version": version_of(file, model),
        "engine": getattr(model, "engine", "PyTorch fp32"),
        "input_size": list(model.preprocess.size),
        "num_classes": len(labels),
        "labels": list(labels),
        "multi_label": calibration.multi_label,
        "calibrated": calibration.n > 0,
        "knows_unknown": calibration.limit is not None,
        "explains": able,
        "card": _card(Path(asked)),
    }


def version_of(file: Path, model: Any) -> str:
    """The first digits of the hash of a model's file, with the weights that engines keep beside it; of a model that
    came from elsewhere, of its tensors.
    """
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
    return digest.hexdigest()[:DIGITS]


def _card(folder: Path) -> str | None:
    card = folder / CARD
    if not card.is_file():
        return None
    return card.read_bytes()[:LONGEST_CARD].decode("utf-8", "replace")
