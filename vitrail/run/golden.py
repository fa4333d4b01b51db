"""Golden samples: images with the logits the model gave them, stored with it and replayed before it is trusted.

A preprocessed test chart is stored too, so that a different crop or resampling kernel is noticed as well.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from vitrail.data.transform import Preprocess
from vitrail.engine.exported import ImageModel
from vitrail.errors import RunError, WeightsError, brief
from vitrail.files import atomic_write
from vitrail.sums import check_sum
from vitrail.weights import tensor_files

GOLDEN = "golden.safetensors"
NUM_GOLDEN = 8
TOLERANCE = 1e-3  # relative to the largest logit: the difference between machines
ROUNDED_TOLERANCE = 0.1  # the same for models rounded to 8 or 16 bits, which each processor rounds its own way
MAX_LEVEL_GAP = 3  # of 255: the difference between machines in resizing
CHART = (360, 500)  # not square, so that cropping shows
HINT = "the original files: weights, preprocessing and golden samples belong together."


def write_golden(
    folder: Path, preprocess: Preprocess, pixels: UInt8[Tensor, "n Y X C"], logits: Float[Tensor, "n K"]
) -> None:
    """Store images with the model's logits, and the preprocessed test chart."""
    chart = torch.from_numpy(_preprocessed_chart(preprocess))
    with atomic_write(folder / GOLDEN, RunError) as part:
        save_file({"pixels": pixels, "logits": logits.contiguous(), "chart": chart}, part)


def read_golden(folder: Path) -> dict[str, torch.Tensor] | None:
    """Read the golden pixels, logits and (except in old files) the chart of a folder; None if it has none."""
    path = folder / GOLDEN
    if not path.is_file():
        return None
    check_sum(path, RunError)
    try:
        golden = tensor_files.read_safetensors(path)
        pixels, logits, chart = golden["pixels"], golden["logits"], golden.get("chart", golden["pixels"][0])
        types = (pixels.dtype, chart.dtype, logits.dtype in tensor_files.FLOATS)
        if (pixels.ndim, chart.ndim, logits.ndim) != (4, 3, 2) or types != (torch.uint8, torch.uint8, True):
            raise ValueError("tensors of other shapes or types")
        if not 0 < len(pixels) == len(logits) or not logits.numel():
            raise ValueError(f"{len(pixels)} images with {len(logits)} outputs")
    except (OSError, LookupError, ValueError) as error:
        raise RunError(f"{path} cannot be read.", got=brief(error), hint="training or exporting again.") from None
    except WeightsError as error:
        raise RunError(f"{path} cannot be read.", got=error.got, hint="training or exporting again.") from None
    return golden


@torch.inference_mode()
def replay(model: ImageModel, folder: Path, *, tolerance: float = TOLERANCE) -> int:
    """Reject a model that no longer reproduces its golden samples; return their number."""
    golden = read_golden(folder)
    if golden is None:
        return 0
    pixels, before = golden["pixels"], golden["logits"]
    if "chart" in golden:
        _check_preprocessing(model.preprocess, golden["chart"].numpy(), folder)
    gap = float("inf")
    if pixels.shape[1:] == (*model.preprocess.size, model.preprocess.channels):
        now = model(model.preprocess.normalise(pixels.numpy())).float()
        gap = (now - before).abs().max().item() if now.shape == before.shape else gap
    if not gap <= tolerance * max(1.0, before.abs().max().item()):
        raise RunError(
            f"the model in {folder} no longer gives the outputs it was saved with.",
            got=f"logits that differ by {gap:.3g} on its golden images.",
            hint=HINT,
        )
    return len(pixels)


def _check_preprocessing(preprocess: Preprocess, before: UInt8[np.ndarray, "Y X C"], folder: Path) -> None:
    now = _preprocessed_chart(preprocess)
    got = f"images of {' x '.join(map(str, now.shape))} instead of {' x '.join(map(str, before.shape))}"
    if now.shape == before.shape:
        gap = int(np.abs(now.astype(np.int16) - before).max())
        if gap <= MAX_LEVEL_GAP:
            return
        got = f"pixels that differ by {gap} of 255 levels"
    raise RunError(f"the model in {folder} no longer preprocesses images as it did.", got=f"{got}.", hint=HINT)


def _preprocessed_chart(preprocess: Preprocess) -> UInt8[np.ndarray, "Y X C"]:
    """Preprocess a chart of ever finer rings, half of it transparent."""
    y, x = np.mgrid[: CHART[0], : CHART[1]]
    rings = [(x * x * (channel + 1) + y * y * (3 - channel)) // 256 % 256 for channel in range(3)]
    file = io.BytesIO()
    alpha = np.where(y < CHART[0] // 2, 255, 96)
    Image.fromarray(np.stack([*rings, alpha], axis=2).astype(np.uint8)).save(file, "PNG", compress_level=1)
    return np.ascontiguousarray(preprocess.read(file.getvalue(), name="the chart"))
