"""Converts the preprocessing to and from timm's `pretrained_cfg` and transformers' `preprocessor_config.json`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vitrail.data.transform import Preprocess
from vitrail.errors import SpecError

CROP_MODES = {"center": "cover", "squash": "squash"}
RESAMPLE = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}
KERNELS = {number: kernel for kernel, number in RESAMPLE.items()}
SQUASHING = ("ViT", "DeiT", "Siglip", "Beit")  # processors for which a single number is the size of both sides
SCALE = 1 / 255


def to_timm(preprocess: Preprocess) -> dict[str, Any]:
    """The preprocessing fields of timm's `pretrained_cfg`."""
    modes = {ours: theirs for theirs, ours in CROP_MODES.items()}
    return {
        "input_size": [preprocess.channels, *preprocess.size],
        "interpolation": preprocess.kernel,
        "crop_pct": preprocess.crop,
        "crop_mode": modes[preprocess.resize],
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
    }


def from_timm(config: Mapping[str, Any]) -> Preprocess:
    """The preprocessing of a `pretrained_cfg`; missing fields have timm's defaults."""
    channels, *size = _numbers(config, "input_size", 3, [3, 224, 224])
    mode = config.get("crop_mode") or "center"
    if mode not in CROP_MODES:
        raise SpecError("this crop mode of timm is not supported.", got=f"{mode!r}.", hint="center or squash.")
    return Preprocess.parse(
        {
            "size": size,
            "resize": CROP_MODES[mode],
            "kernel": config.get("interpolation") or "bilinear",
            "crop": config.get("crop_pct") or 0.875,
            "mean": config.get("mean") or (0.485, 0.456, 0.406),
            "std": config.get("std") or (0.229, 0.224, 0.225),
            "mode": "grey" if channels == 1 else "rgb",
        }
    )


def to_hf(preprocess: Preprocess) -> dict[str, Any]:
    """The `preprocessor_config.json` with which transformers preprocesses images in the same way."""
    rows, columns = preprocess.size
    if preprocess.mode != "rgb":
        raise SpecError("transformers needs images with three channels.", got="mode=grey.", hint="mode=rgb.")
    config: dict[str, Any] = {
        "do_convert_rgb": True,
        "do_resize": True,
        "resample": RESAMPLE[preprocess.kernel],
        "do_rescale": True,
        "rescale_factor": SCALE,
        "do_normalize": True,
        "image_mean": list(preprocess.mean),
        "image_std": list(preprocess.std),
    }
    if preprocess.resize == "squash" and preprocess.crop == 1.0:
        return {"image_processor_type": "ViTImageProcessor", "size": {"height": rows, "width": columns}, **config}
    crop = {"do_center_crop": True, "crop_size": {"height": rows, "width": columns}}
    if preprocess.resize == "squash":
        before = {"height": math.floor(rows / preprocess.crop), "width": math.floor(columns / preprocess.crop)}
        return {"image_processor_type": "DeiTImageProcessor", "size": before, **crop, **config}
    if rows != columns:
        raise SpecError(
            "transformers cannot cover a size that is not square.",
            got=f"size={rows} x {columns}.",
            hint="resize=squash.",
        )
    before = {"shortest_edge": math.floor(rows / preprocess.crop)}
    return {"image_processor_type": "BitImageProcessor", "size": before, **crop, **config}


def from_hf(config: Mapping[str, Any]) -> Preprocess:
    """The preprocessing of a `preprocessor_config.json`, from any version of transformers."""
    name = str(config.get("image_processor_type") or config.get("feature_extractor_type") or "")
    if config.get("do_resize") is False or not math.isclose(
        _number(config, "rescale_factor", SCALE), SCALE, rel_tol=1e-3
    ):
        raise SpecError("this image processor is not supported.", got=f"{name or 'no name'}.")
    size, before = config.get("size", 224), None
    if isinstance(size, Mapping):
        squashed = "shortest_edge" not in size
        before = [_number(size, side, 0) for side in (("height", "width") if squashed else ("shortest_edge",) * 2)]
    else:
        squashed = name.startswith(SQUASHING)
        before = list(size) if isinstance(size, (list, tuple)) else [size, size]
    crops = bool(config.get("do_center_crop", "crop_size" in config)) and config.get("crop_size") is not None
    final = config["crop_size"] if crops else before
    if isinstance(final, Mapping):
        final = [_number(final, side, 0) for side in ("height", "width")]
    final = list(final) if isinstance(final, (list, tuple)) else [final, final]
    if not all(isinstance(side, (int, float)) and 0 < side < 2**16 for side in (*before, *final)):
        raise SpecError("this image processor has no usable size.", got=f"size={size!r:.60}.")
    raw = config.get("do_normalize") is False
    return Preprocess.parse(
        {
            "size": [int(side) for side in final],
            "resize": "squash" if squashed else "cover",
            "kernel": KERNELS.get(config.get("resample", 2), "bilinear"),
            "crop": _crop_fraction(final[0], before[0]) if crops else 1.0,
            "mean": [0.0] * 3 if raw else config.get("image_mean") or [0.5] * 3,
            "std": [1.0] * 3 if raw else config.get("image_std") or [0.5] * 3,
        }
    )


def _crop_fraction(final: float, before: float) -> float:
    """The fraction that is kept, such that dividing by it and rounding down restores the size before the crop."""
    fraction = min(1.0, final / before)
    return fraction if math.floor(final / fraction) == before or fraction == 1.0 else math.nextafter(fraction, 0.0)


def _number(config: Mapping[str, Any], key: str, default: float) -> float:
    value = config.get(key, default)
    return value if isinstance(value, (int, float)) else default


def _numbers(config: Mapping[str, Any], key: str, num: int, default: list[int]) -> list[int]:
    value = config.get(key)
    if isinstance(value, (list, tuple)) and len(value) == num and all(isinstance(each, int) for each in value):
        return list(value)
    return default
