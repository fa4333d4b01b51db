"""A small VATT of three modalities, its objective, and batches for it."""

from __future__ import annotations

from typing import Any

import torch

from vitrail import plug
from vitrail.batch import Fields

SMALL = {"width": 32, "depth": 2, "heads": 2, "hidden": 64}
IMAGE = {"name": "image", "family": "vit", "spec": {**SMALL, "image_size": 16, "stem": {"name": "patch", "patch": 4}}}
SOUND = {
    "name": "sound",
    "family": "vit",
    "spec": {**SMALL, "image_size": [64], "channels": 1, "stem": {"name": "patch", "patch": [8]}, "pool": "mean"},
}
VIDEO = {
    "name": "video",
    "family": "vit",
    "spec": {**SMALL, "image_size": [4, 8, 8], "channels": 1, "stem": {"name": "patch", "patch": [2, 4, 4]}},
}
TEXT = {
    "name": "text",
    "family": "language",
    "spec": {**SMALL, "vocab": 20, "context": 8, "position": "learned"},
}


def new_spec(*towers: dict[str, Any], **fields: Any) -> Any:
    """The specification of images, sound and text, unless other towers are given."""
    fields = {"embed_width": 16, **fields}
    return plug.load("vitrail.model", "vatt").Spec.parse({"towers": towers or (IMAGE, SOUND, TEXT), **fields})


def new_vatt(*towers: dict[str, Any], **fields: Any) -> Any:
    """A model with seeded weights."""
    torch.manual_seed(0)
    return plug.load("vitrail.model", "vatt").Model(new_spec(*towers, **fields))


def new_contrast(model: Any, **options: Any) -> Any:
    """The objective for a model, as a kind makes it."""
    spec = model.spec
    entry = plug.load("vitrail.objective", "contrast")
    return entry.Objective(outputs=spec.outputs, pairs=spec.pairs, text=spec.text, pad=spec.pad, **options)


def new_fields(num: int, num_texts: int = 1) -> Fields:
    """Random samples; with several texts each, some are missing, and the last sample has none."""
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(1, 20, (num, num_texts, 8), generator=generator)
    text[::2, :, 5:] = 0
    if num_texts > 1:
        text[::3, 0] = 0
        text[-1:] = 0
    return {
        "image": torch.randn(num, 3, 16, 16, generator=generator),
        "sound": torch.randn(num, 1, 64, generator=generator),
        "text": text if num_texts > 1 else text[:, 0],
    }
