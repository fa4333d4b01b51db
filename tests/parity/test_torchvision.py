"""torchvision's VisionTransformer, which takes only square images, computes the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.conftest import fill
from tests.parity.compare import assert_parity, case_id
from tests.parity.conftest import torchvision
from vitrail import create_model, save_weights
from vitrail.catalogue import build, on_meta, spec_named
from vitrail.weights.source import get_format

# The smallest model has all its blocks, the base model two. 384 pixels resize the position table.
CASES = [
    ("vit_tiny_patch16_224", 12, None, 384, torch.float64),
    ("vit_tiny_patch16_224", 12, None, 224, torch.float32),
    ("vit_tiny_patch16_224", 2, 48, 224, torch.float64),
    ("vit_tiny_patch16_224", 2, 48, 384, torch.float32),
    ("vit_base_patch16_224", 2, None, 224, torch.float64),
    ("vit_base_patch16_224", 2, 48, 384, torch.float32),
]


@pytest.mark.parametrize(("name", "depth", "pre_logits", "side", "dtype"), CASES, ids=case_id)
def test_vit(name: str, depth: int, pre_logits: int | None, side: int, dtype: torch.dtype, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("name", ["vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32", "vit_h_14"])
def test_their_sizes_are_in_the_catalogue(name: str) -> None:
    """Their weights have the shapes, the heads and the epsilon of our model of that size, and its number of blocks."""
    size = {"b": "base", "l": "large", "h": "huge"}[name[4]]
    with on_meta():
        ours = build(spec_named(f"vit_{size}_patch{name[6:]}_224"))
    with torch.device("meta"):
        theirs = getattr(torchvision.models, name)()
    written = get_format("torchvision").write(ours.state_dict(), ours.spec.model_dump())
    assert {key: tensor.shape for key, tensor in written.items()} == {
        key: tensor.shape for key, tensor in theirs.state_dict().items()
    }
    block = theirs.encoder.layers[0]
    assert (ours.spec.heads, ours.spec.norm_eps) == (block.num_heads, block.ln_1.eps)
