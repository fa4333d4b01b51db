"""Peers to compare with. torchvision has no CPU build beside this torch: its missing operators are declared first."""

from __future__ import annotations

import contextlib
import warnings

import torch

for signature in (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
):
    name, _, rest = signature.partition("(")
    with contextlib.suppress(RuntimeError):
        torch.library.define(f"torchvision::{name}", f"({rest}")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import timm
    import torchvision
    import transformers

__all__ = ["timm", "torchvision", "transformers"]
