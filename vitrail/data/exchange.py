"""The preprocessing in the words of timm (`pretrained_cfg`) and of transformers (`preprocessor_config.json`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vitrail.data.transform import Preprocess
from vitrail.errors import SpecError

CROP_MODES = {"center": "cover", "squash": "squash"}
RESAMPLE = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}
KERNEL_OF_NUMBER = {number: kernel for kernel, number in RESAMPLE.items()}
SQUASHING = ("ViT", "DeiT", "Siglip", "Beit")  # processors whose plain number of a size stands for both sides
SCALE = 1 / 255


def to_timm(preprocess: Preprocess) -> dict[str, Any]:
    """The fields of timm's `pretrained_cfg` that prepare a picture."""
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
    """The preprocessing that a `pretrained_cfg` tells; what it leaves out is timm's default."""
    channels, *size = _numbers(config, "input_size", 3, [3, 224, 224])
    mode = config.get("crop_mode") or "center"
    if mode not in CROP_MODES:
        raise SpecError("this crop mode of timm's is none of Vitrail's.", got=f"{mode!r}.", hint="center or squash.")
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
    """The `preprocessor_config.json` with which transformers prepares pictures in the same way."""
    rows, columns = preprocess.size
    if preprocess.mode != "rgb":
        raise SpecError("transformers prepares pictures of three channels.", got="mode=grey.", hint="mode=rgb.")
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
    """The preprocessing that a `preprocessor_config.json` tells, of any age."""
    name = str(config.get("image_processor_type") or config.get("feature_extractor_type") or "")
    if config.get("do_resize") is False or not math.isclose(
        _number(config, "rescale_factor", SCALE), SCALE, rel_tol=1e-3
    ):
        raise SpecError("this processor prepares pictures in another way.", got=f"{name or 'no name'}.")
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
        raise SpecError("this processor tells no size that can be used.", got=f"size={size!r:.60}.")
    plain = config.get("do_normalize") is False
    return Preprocess.parse(
        {
            "size": [int(side) for side in final],
            "resize": "squash" if squashed else "cover",
            "kernel": KERNEL_OF_NUMBER.get(config.get("resample", 2), "bilinear"),
            "crop": _share(final[0], before[0]) if crops else 1.0,
            "mean": [0.0] * 3 if plain else config.get("image_mean") or [0.5] * 3,
            "std": [1.0] * 3 if plain else config.get("image_std") or [0.5] * 3,
        }
    )


def _share(final: float, before: float) -> float:
    """The part that is kept, such that dividing by it and rounding down gives the size before the crop again."""
    share = min(1.0, final / before)
    return share if math.floor(final / share) == before or share == 1.0 else math.nextafter(share, 0.0)


def _number(config: Mapping[str, Any], key: str, default: float) -> float:
    value = config.get(key, default)
    return value if isinstance(value, (int, float)) else default


def _numbers(config: Mapping[str, Any], key: str, num: int, default: list[int]) -> list[int]:
    value = config.get(key)
    if isinstance(value, (list, tuple)) and len(value) == num and all(isinstance(each, int) for each in value):
        return list(value)
    return default
