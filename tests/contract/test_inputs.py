"""Inputs of one to three dimensions: what models learn from them, and what they say about a wrong shape."""

from __future__ import annotations

import pytest
import torch

from tests.contract.test_models import image_for, make_model
from vitrail.errors import ShapeError


@pytest.mark.parametrize(
    ("image", "hint"),
    [
        (torch.zeros(1, 4, 64, 64), "channels=4 when creating the model"),
        (torch.zeros(3, 64, 64), "image\\[None\\]"),
        (torch.zeros(1, 64, 64, 3), "permute\\(0, 3, 1, 2\\)"),
        (torch.zeros(1, 3, 64, 64, dtype=torch.uint8), "float"),
        (torch.zeros(64), "Got \\[64\\]"),
    ],
)
@pytest.mark.parametrize("kind", ["vit", "bit"])
def test_images_of_a_wrong_shape(kind: str, image: torch.Tensor, hint: str) -> None:
    with pytest.raises(ShapeError, match=rf"\[batch, 3, rows, columns\](.|\n)*{hint}"):
        make_model(kind)(image)


@pytest.mark.parametrize(
    ("kind", "shape", "words"),
    [
        ("sound", (1, 256, 2), ["inputs of shape [batch, 2, length]", "input.permute(0, 2, 1)", "before length"]),
        ("sound", (2, 256), ["input[None], a batch of one"]),
        ("video", (1, 2, 32, 48), ["inputs of shape [batch, 2, frames, rows, columns]", "input[None]"]),
        ("video", (1, 8, 32, 48, 2), ["input.permute(0, 4, 1, 2, 3), which puts channels before frames"]),
        ("video", (1, 3, 8, 32, 48), ["channels=3 when creating"]),
        ("video", (1, 2, 7, 32, 48), ["patch must divide the input size", "6 x 32 x 48 or 8 x 32 x 48"]),
    ],
)
def test_inputs_of_other_dimensions_of_a_wrong_shape(kind: str, shape: tuple[int, ...], words: list[str]) -> None:
    with pytest.raises(ShapeError) as caught:
        make_model(kind)(torch.zeros(shape))
    for word in words:
        assert word in str(caught.value)
    with pytest.raises(ShapeError, match=r"input.float\(\)"):
        make_model("sound")(torch.zeros(1, 2, 256, dtype=torch.int16))


@pytest.mark.parametrize("kind", ["sound", "video"])
def test_every_weight_learns_from_sound_and_video(kind: str) -> None:
    model = make_model(kind).train()
    model(image_for(model)).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().max() > 0 for parameter in model.parameters())
