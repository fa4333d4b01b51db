"""Goldens: pictures and the logits that a model gave to them, kept with it, and asked again before it is trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from vitrail.errors import RunError, brief
from vitrail.run.artefact import GOLDEN

NEAR = 1e-3  # of the largest logit, by which machines may differ
ROUNDED = 0.1  # the same of models that are rounded to 8 or 16 bits, which each processor does its own way


def read_golden(folder: Path) -> dict[str, torch.Tensor] | None:
    """The pixels and logits that lie in a folder; None where there are none."""
    path = folder / GOLDEN
    if not path.is_file():
        return None
    try:
        golden = load_file(path)
        assert golden["pixels"].dtype == torch.uint8
        assert len(golden["pixels"]) == len(golden["logits"])
    except (OSError, SafetensorError, KeyError, AssertionError) as error:
        raise RunError(f"{path} cannot be read.", got=brief(error), hint="training or exporting anew.") from None
    return golden


@torch.inference_mode()
def replay(model: Any, folder: Path, *, near: float = NEAR) -> int:
    """Ask a model what it was asked when it was made, and refuse one that answers otherwise; the number of pictures."""
    golden = read_golden(folder)
    if golden is None:
        return 0
    pixels, before = golden["pixels"], golden["logits"]
    if pixels.shape[1:3] != torch.Size(model.preprocess.size):
        gap = float("inf")
    else:
        now = model(model.preprocess.normalise(pixels.numpy())).float()
        gap = (now - before).abs().max().item() if now.shape == before.shape else float("inf")
    if not gap <= near * max(1.0, before.abs().max().item()):
        raise RunError(
            f"the model in {folder} no longer says what it said when it was made.",
            got=f"logits that differ by {gap:.3g} on its golden pictures.",
            hint="its files as they were: weights, config.yaml and calibration belong together.",
        )
    return len(pixels)
