"""Goldens: pictures and the logits that a model gave to them, kept with it, and asked again before it is trusted.

With them a test chart as the model's preparation made it, so that another crop or kernel is seen as well.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitrail.data.transform import Preprocess
from vitrail.errors import RunError, brief
from vitrail.files import replacing

GOLDEN = "golden.safetensors"
NUM_GOLDEN = 8
NEAR = 1e-3  # of the largest logit, by which machines may differ
ROUNDED = 0.1  # the same of models that are rounded to 8 or 16 bits, which each processor does its own way
LEVELS = 3  # of 255, by which machines may differ in resizing
CHART = (360, 500)  # not square, so that cropping shows
HINT = "its files as they were: weights, how pictures are prepared, and these goldens belong together."


def write_golden(
    folder: Path, preprocess: Preprocess, pixels: UInt8[Tensor, "n Y X C"], logits: Float[Tensor, "n K"]
) -> None:
    """Keep what a model was asked and what it said, and how it prepares a picture."""
    chart = torch.from_numpy(_prepared_chart(preprocess))
    with replacing(folder / GOLDEN, RunError) as part:
        save_file({"pixels": pixels, "logits": logits.contiguous(), "chart": chart}, part)


def read_golden(folder: Path) -> dict[str, torch.Tensor] | None:
    """The pixels and logits that lie in a folder, and the chart unless it is an old one; None where there are none."""
    path = folder / GOLDEN
    if not path.is_file():
        return None
    try:
        golden = load_file(path)
        pixels, logits, chart = golden["pixels"], golden["logits"], golden.get("chart", golden["pixels"][0])
        kinds = (pixels.dtype, chart.dtype, logits.is_floating_point())
        if (pixels.ndim, chart.ndim, logits.ndim) != (4, 3, 2) or kinds != (torch.uint8, torch.uint8, True):
            raise ValueError("tensors of other shapes or kinds")
    except (OSError, SafetensorError, LookupError, ValueError) as error:
        raise RunError(f"{path} cannot be read.", got=brief(error), hint="training or exporting anew.") from None
    return golden


@torch.inference_mode()
def replay(model: Any, folder: Path, *, near: float = NEAR) -> int:
    """Ask a model what it was asked when it was made, and refuse one that answers otherwise; the number of pictures."""
    golden = read_golden(folder)
    if golden is None:
        return 0
    pixels, before = golden["pixels"], golden["logits"]
    if "chart" in golden:
        _check_preparation(model.preprocess, golden["chart"].numpy(), folder)
    gap = float("inf")
    if pixels.shape[1:] == (*model.preprocess.size, model.preprocess.channels):
        now = model(model.preprocess.normalise(pixels.numpy())).float()
        gap = (now - before).abs().max().item() if now.shape == before.shape else gap
    if not gap <= near * max(1.0, before.abs().max().item()):
        raise RunError(
            f"the model in {folder} no longer says what it said when it was made.",
            got=f"logits that differ by {gap:.3g} on its golden pictures.",
            hint=HINT,
        )
    return len(pixels)


def _check_preparation(preprocess: Preprocess, before: UInt8[np.ndarray, "Y X C"], folder: Path) -> None:
    now = _prepared_chart(preprocess)
    got = f"pictures of {' x '.join(map(str, now.shape))} instead of {' x '.join(map(str, before.shape))}"
    if now.shape == before.shape:
        gap = int(np.abs(now.astype(np.int16) - before).max())
        if gap <= LEVELS:
            return
        got = f"pixels that differ by {gap} of 255 levels"
    raise RunError(f"the model in {folder} no longer prepares pictures as it did.", got=f"{got}.", hint=HINT)


def _prepared_chart(preprocess: Preprocess) -> UInt8[np.ndarray, "Y X C"]:
    """What a model would see of a chart of rings, ever finer, on a background that shines through."""
    y, x = np.mgrid[: CHART[0], : CHART[1]]
    rings = [(x * x * (channel + 1) + y * y * (3 - channel)) // 256 % 256 for channel in range(3)]
    file = io.BytesIO()
    alpha = np.where(y < CHART[0] // 2, 255, 96)
    Image.fromarray(np.stack([*rings, alpha], axis=2).astype(np.uint8)).save(file, "PNG", compress_level=1)
    return np.ascontiguousarray(preprocess.pixels(preprocess.decode(file.getvalue(), name="the chart")))
