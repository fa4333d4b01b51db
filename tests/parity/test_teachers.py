"""A model of timm as a teacher."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm

from vitrail.errors import WeightsError
from vitrail.inspection.adopt import adopt
from vitrail.verbs.train import train


def test_a_model_without_a_head_has_no_class_names() -> None:
    adopted = adopt(timm.create_model("resnetv2_50x1_bit", num_classes=0))
    assert (adopted.spec.num_classes, adopted.labels) == (0, ())


def test_a_timm_teacher_says_its_classes(tmp_path: Path) -> None:
    theirs = timm.create_model("vit_tiny_patch16_224", num_classes=10, img_size=32, embed_dim=32, depth=1, num_heads=2)
    settings = ["batch_size=32", "precision=float32", "workers=0", "steps=2"]

    def learn(name: str) -> int:
        run = tmp_path / name
        return train(
            "digits", recipe="distill", teacher=theirs, model="vit_mu_patch4_8", run=run, settings=settings
        ).steps

    with pytest.raises(WeightsError, match="does not say which classes"):
        learn("without")
    theirs.labels = list("0123456789")
    assert learn("with") == 2
