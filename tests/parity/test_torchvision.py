"""torchvision's VisionTransformer, which takes only square images, computes the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.conftest import fill
from tests.parity.compare import assert_parity
from tests.parity.conftest import torchvision
from vitrail import create_model, save_weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("side", [224, 384])
@pytest.mark.parametrize("pre_logits", [None, 48], ids=["plain", "pre_logits"])
@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_base_patch16_224"])
def test_vit(name: str, pre_logits: int | None, side: int, dtype: torch.dtype, tmp_path: Path) -> None:
    depth = 2 if name == "vit_base_patch16_224" and (pre_logits or (side == 384 and dtype == torch.float64)) else 12
    source = fill(create_model(name, depth=depth, pre_logits=pre_logits))
    save_weights(source, tmp_path / "w.pth", to="torchvision")
    ours = create_model(name, weights=tmp_path / "w.pth", image_size=side, depth=depth)
    save_weights(ours, tmp_path / "resized.pth", to="torchvision")
    spec = ours.spec
    theirs = torchvision.models.VisionTransformer(
        side, 16, depth, spec.heads, spec.width, spec.hidden, representation_size=pre_logits
    )
    theirs.load_state_dict(torch.load(tmp_path / "resized.pth", weights_only=True), strict=True)
    assert_parity(ours, theirs, torch.randn(1, 3, side, side), format_name="torchvision", dtype=dtype)
