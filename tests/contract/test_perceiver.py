"""The Perceiver: Fourier positions, shared stages, several inputs, and a cost that is linear in their number."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import fill
from vitrail import create_model
from vitrail.batch import Fields
from vitrail.catalogue import build, describe, on_meta, spec_named
from vitrail.errors import ShapeError, SpecError
from vitrail.masking import MaskingSpec, build_objective
from vitrail.model.perceiver import Spec
from vitrail.nn.attention.full import CrossAttention
from vitrail.nn.fourier import fourier_positions, fourier_width
from vitrail.objective.classify import Classify
from vitrail.tokens import Tokens
from vitrail.training.learner import Learner
from vitrail.training.optim import find_muon_matrices, make_optimizers

MU = "perceiver_mu_32"
SOUND = [{"name": "sound", "channels": 2, "size": [40]}]


def small(**fields: Any) -> Any:
    return fill(create_model(MU, **{"num_classes": 5, "image_size": 8, **fields}), 0.2).eval()


def small_sound(**fields: Any) -> Any:
    return small(input_name="sound", image_size=(40,), resolution=None, channels=2, **fields)


@pytest.mark.parametrize(
    ("grid", "resolution"),
    [((7,), (7,)), ((4, 6), (4, 6)), ((9, 3), (28, 28)), ((2, 3, 5), (8, 4, 4)), ((1, 4), (2, 4))],
)
def test_fourier_positions_are_their_definition(grid: tuple[int, ...], resolution: tuple[int, ...]) -> None:
    bands = 3
    found = fourier_positions(grid, bands=bands, resolution=resolution)
    assert found.shape == (*grid, fourier_width(len(grid), bands))
    for place in itertools.product(*(range(num) for num in grid)):
        expected: list[float] = []
        for index, num, samples in zip(place, grid, resolution, strict=True):
            x = 2 * index / (num - 1) - 1 if num > 1 else 0.0
            frequencies = [1 + k * (samples / 2 - 1) / (bands - 1) for k in range(bands)]
            expected += [math.sin(math.pi * f * x) for f in frequencies]
            expected += [math.cos(math.pi * f * x) for f in frequencies]
            expected.append(x)
        assert np.allclose(found[place].numpy(), expected, atol=1e-5)


def test_tokens_are_pixels_with_their_positions() -> None:
    model = small(image_size=(4, 6))
    image = torch.randn(2, 3, 4, 6)
    tokens = model.tokenize(image)
    assert tokens.layout.grid == (4, 6)
    assert tokens.x.shape == (2, 24, model.spec.input_width)
    assert torch.equal(tokens.x[:, :, :3], image.flatten(2).mT), "raw pixels, not patches"
    positions = fourier_positions((4, 6), bands=4, resolution=(32, 32)).flatten(0, 1)
    assert torch.equal(tokens.x[1, :, 3:], positions)


def test_a_patch_is_one_input_of_all_its_values() -> None:
    model = small(image_size=(4, 6), patch=(2, 3), resolution=None)
    assert (model.spec.cell, model.spec.layout.grid, model.spec.resolution) == ((2, 3), (2, 2), (4, 6))
    image = torch.randn(2, 3, 4, 6)
    tokens = model.tokenize(image)
    assert tokens.x.shape == (2, 4, model.spec.input_width)
    for index, (row, column) in enumerate(itertools.product(range(2), range(2))):
        part = image[:, :, 2 * row : 2 * row + 2, 3 * column : 3 * column + 3]
        assert torch.equal(tokens.x[:, index, :18], part.flatten(1)), "channel by channel, rows and columns within"
    positions = fourier_positions((2, 2), bands=4, resolution=(2, 2)).flatten(0, 1)
    assert torch.equal(tokens.x[1, :, 18:], positions)
    assert model(image).shape == (2, 5)
    sound = spec_named("perceiver_mu_patch16_sound80")
    assert isinstance(sound, Spec)
    assert (sound.takes, sound.patch, sound.layout.grid, sound.resolution) == (("sound",), (16,), (5,), (80,))
    assert spec_named("perceiver_mu_patch4_32").layout.grid == (8, 8)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "words", "same"),
    [
        ("perceiver_nano_28", ["patch=4"], "perceiver_nano_patch4_28"),
        ("perceiver_nano_patch4_28", ["patch=null"], "perceiver_nano_28"),
        ("perceiver_nano_sound8000", ["patch=[32]"], "perceiver_nano_patch32_sound8000"),
    ],
)
def test_a_patch_by_name_or_by_field(name: str, words: list[str], same: str) -> None:
    assert spec_named(name).override_words(words) == spec_named(same)


def test_the_size_and_the_patch_do_not_change_the_resolution() -> None:
    """Weights belong to frequencies; a patch twice as large can represent half of them."""
    larger = spec_named("perceiver_nano_patch4_28").override({"image_size": 64, "patch": 8})
    assert (larger.layout.grid, larger.resolution) == ((8, 8), (28, 28))
    model = small(image_size=(32, 64), patch=8)
    positions = fourier_positions((4, 8), bands=4, resolution=(4, 4)).flatten(0, 1)
    assert torch.equal(model.tokenize(torch.zeros(1, 3, 32, 64)).x[0, :, 3 * 64 :], positions)


def test_inputs_may_have_patches_of_their_own() -> None:
    both = small(image_size=(4, 6), more_inputs=[{**SOUND[0], "patch": [8]}])
    assert both.tokenize(torch.randn(2, 3, 4, 6), torch.randn(2, 2, 40)).layout == both.spec.layout
    assert both.spec.layout.grid == (24 + 5,)


def test_the_papers_model_has_the_papers_size() -> None:
    spec = spec_named("perceiver_base_224")
    assert isinstance(spec, Spec)
    assert (spec.num_latents, spec.width, spec.num_stages, spec.depth) == (512, 1024, 8, 6)
    assert (spec.cross_heads, spec.heads, spec.bands, spec.input_width) == (1, 8, 64, 261)
    assert describe("perceiver_base_224").params == pytest.approx(44.9e6, rel=1e-3)  # table 1 of the paper


def num_params(**fields: Any) -> int:
    with on_meta():
        return sum(parameter.numel() for parameter in build(spec_named(MU).override(fields)).parameters())


def test_stages_share_their_weights() -> None:
    """All but the first cross-attention, so more stages add nothing; without sharing each stage adds its own."""
    model = small()
    cross, block = (sum(p.numel() for p in each.parameters()) for each in (model.cross[0], model.blocks[0]))
    one, two, nine = (num_params(num_stages=num, depth=3) for num in (1, 2, 9))
    assert two - one == cross
    assert nine == two
    assert num_params(num_stages=9, depth=3, share_weights=False) - nine == 7 * cross + 8 * 3 * block


def test_each_stage_reads_the_inputs() -> None:
    model, image = small(num_stages=3), torch.randn(1, 3, 8, 8)
    order = [isinstance(block.attn, CrossAttention) for block in model.iter_blocks()]
    assert order == [True, False] * 3
    blocks = list(model.iter_blocks())
    assert blocks[2] is blocks[4]
    assert blocks[2] is not blocks[0]
    with torch.no_grad():
        latents = model.latents.clone()
        inputs = model.tokenize(image)
        inputs = inputs.with_x(model.input_norm(inputs.x))
        tokens = Tokens(latents, model.spec.latent_layout)
        for block in model.iter_blocks():
            tokens = block(tokens, inputs) if isinstance(block.attn, CrossAttention) else block(tokens)
        assert torch.allclose(model.encode(model.tokenize(image)).x, model.norm(tokens.x), atol=1e-6), (
            "read once or often"
        )


def test_the_cost_is_linear_in_the_inputs() -> None:
    def flops(num: int) -> int:
        fields = {"image_size": [num], "resolution": None, "channels": 1, "num_stages": 3}
        with on_meta():
            return build(spec_named(MU).override(fields)).flops()

    costs = [flops(num) for num in (1000, 2000, 3000, 100_000)]
    per_input = (costs[1] - costs[0]) / 1000
    assert costs[2] - costs[1] == costs[1] - costs[0]
    assert costs[3] == costs[0] + 99_000 * per_input


def test_memory_is_linear_in_the_inputs() -> None:
    """What is kept for the backward pass: no matrix of latents and inputs, since attention is fused."""

    def kept(num: int) -> int:
        model = small(image_size=(num,), resolution=None, channels=1, num_latents=64)
        sizes: dict[int, int] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            output = model(torch.randn(1, 1, num))
        assert output.requires_grad
        return sum(sizes.values())

    per_input = (kept(2048) - kept(1024)) / 1024
    assert per_input < 4 * 64, "less than one number per input and latent"
    assert kept(3072) - kept(2048) == pytest.approx(1024 * per_input, rel=0.01)


@pytest.mark.parametrize("size", [(12, 12), (5, 9), (1, 1)])
def test_another_image_size_at_run_time(size: tuple[int, int]) -> None:
    """Positions are functions of coordinates, so a model built for the size by overriding it is the same."""
    model, image = small(), torch.randn(2, 3, *size)
    built = build(model.spec.override({"image_size": size})).eval()
    built.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(model(image), built(image))
        assert model(image).std() > 1e-3


def test_an_image_and_its_enlargement_look_alike() -> None:
    """The same coordinates have the same features at any size: a constant image has the same mean reading."""
    model = small(bands=1)
    with torch.no_grad():
        logits = [model(torch.full((1, 3, side, side), 0.3)) for side in (32, 64)]
    assert torch.allclose(*logits, atol=0.02 * logits[0].abs().max().item())


def test_the_order_of_the_inputs_does_not_matter() -> None:
    model, order = small(), torch.randperm(64)
    tokens = model.tokenize(torch.randn(2, 3, 8, 8))
    shuffled = tokens.x.clone()
    shuffled[:, :, :3] = tokens.x[:, order, :3]  # pixels without their positions
    with torch.no_grad():
        expected = model.encode(tokens).x
        assert torch.allclose(model.encode(tokens.with_x(tokens.x[:, order])).x, expected, atol=1e-5)
        assert not torch.allclose(model.encode(tokens.with_x(shuffled)).x, expected, atol=1e-3)


def test_padding_is_not_read() -> None:
    model = small_sound()
    tokens = model.tokenize(torch.randn(2, 2, 40))
    lengths = torch.tensor([25, 40])
    mask = torch.arange(40) < lengths[:, None]
    padded = tokens.x.masked_fill(~mask[:, :, None], 1e3)
    with torch.no_grad():
        found = model.encode(Tokens(padded, tokens.layout, mask))
        alone = [model.encode(tokens._replace(x=tokens.x[i : i + 1, :num])).x for i, num in enumerate(lengths)]
        assert torch.allclose(found.x, torch.cat(alone), atol=1e-5)
        assert not torch.allclose(found.x[:1], model.encode(tokens).x[:1], atol=1e-3)
        assert found.mask is None, "all latents are real"


def test_sound_and_both() -> None:
    sound = small_sound()
    assert sound.TAKES == ("sound",)
    assert sound(torch.randn(3, 2, 40)).shape == sound(torch.randn(3, 2, 61)).shape == (3, 5)
    both = small(more_inputs=SOUND)
    assert both.TAKES == ("image", "sound")
    image, samples = torch.randn(3, 3, 8, 8), torch.randn(3, 2, 40)
    tokens = both.tokenize(image, samples)
    assert tokens.layout == both.spec.layout
    assert tokens.x.shape == (3, 64 + 40, both.spec.input_width)
    assert torch.equal(tokens.x[0, 5, -4:], both.modality["image"])
    assert torch.equal(tokens.x[2, 64 + 7, -len(both.modality["sound"]) :], both.modality["sound"])
    with torch.no_grad():
        logits = both(image, samples)
        assert not torch.allclose(both(image.flip(0), samples)[0], logits[0], atol=1e-3)
        assert not torch.allclose(both(image, samples.flip(0))[0], logits[0], atol=1e-3)
    assert not small().modality, "one input needs no modality"


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ((torch.randn(2, 3, 8, 8),), ["takes image and sound", "1 inputs"]),
        ((torch.randn(2, 3, 8, 8), torch.randn(2, 3, 40)), ["[batch, 2, length]", "[2, 3, 40]"]),
        ((torch.randn(2, 8, 8, 3), torch.randn(2, 2, 40)), ["[batch, 3, rows, columns]"]),
    ],
)
def test_wrong_inputs(inputs: tuple[torch.Tensor, ...], words: list[str]) -> None:
    with pytest.raises(ShapeError) as refused:
        small(more_inputs=SOUND)(*inputs)
    assert all(word in str(refused.value) for word in words)


@pytest.mark.parametrize("more", [{"more_inputs": SOUND}, {"input_name": "sound"}])
def test_images_alone_are_not_enough_for_other_inputs(more: dict[str, Any]) -> None:
    with pytest.raises(ShapeError, match=r"works for models of images only.\n.*takes (image and )?sound"):
        _ = create_model(MU, **more).preprocess


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_latents": 0}, ["num_latents", "greater than 0"]),
        ({"bands": 0}, ["bands", "greater than 0"]),
        ({"num_stages": 0}, ["num_stages", "greater than 0"]),
        ({"heads": 3}, ["heads must divide width", "heads=3, width=32", "1, 2, 4"]),
        ({"cross_heads": 2}, ["cross_heads must divide cross_width", "cross_heads=2, cross_width=21", "1, 3, 7, 21"]),
        ({"image_size": [40]}, ["a number for each dimension", "resolution 32 x 32, size 40", "resolution=[40]"]),
        ({"more_inputs": [{"name": "image", "size": [4]}]}, ["a name of its own", "image, image"]),
        ({"more_inputs": [{"name": "a.b", "size": [4]}]}, ["more_inputs.0.name", "pattern"]),
        ({"more_inputs": [{"name": "sound"}]}, ["more_inputs.0.size is required"]),
        ({"more_inputs": [{"name": "sound", "size": [2, 2, 2, 2]}]}, ["more_inputs.0.size", "at most 3"]),
        ({"latents": 4}, ["no setting 'latents'", "num_latents"]),
        ({"patch": 5}, ["patch must divide the image size", "32 x 32, patch 5 x 5", "30 x 30 or 35 x 35"]),
        ({"patch": [4]}, ["patches of 1 dimension cannot", "32 x 32, patch 4", "[4, 4], one side for each axis"]),
        ({"patch": 0}, ["patch", "greater than 0"]),
        ({"patch": False}, ["patch", "Got False"]),
        ({"more_inputs": [{"name": "sound", "size": [40], "patch": [16]}]}, ["patch must divide", "40, patch 16"]),
    ],
)
def test_bad_specifications(fields: dict[str, Any], words: list[str]) -> None:
    with pytest.raises((SpecError, ShapeError)) as refused:
        spec_named(MU).override(fields)
    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_the_resolution_stays_when_the_size_changes() -> None:
    spec = spec_named("perceiver_mu_32")
    assert isinstance(spec, Spec)
    larger = spec.override({"image_size": 48})
    assert (larger.image_size, larger.resolution) == ((48, 48), (32, 32))
    assert spec.override({"image_size": 48, "resolution": None}).resolution == (48, 48)
    assert Spec.parse_yaml(larger.to_yaml()) == larger


def test_patches_cannot_be_hidden_from_it() -> None:
    with pytest.raises(SpecError, match=r"needs a Vision Transformer for images.\n.*Perceiver"):
        build_objective(MaskingSpec(), create_model(MU, num_classes=0))


def both_fields(num: int = 32) -> Fields:
    """Two classes by the image, two by the sound; the label needs both."""
    random = torch.Generator().manual_seed(0)
    bright, loud = (torch.randint(0, 2, (num,), generator=random) for _ in range(2))
    image = torch.randn(num, 3, 8, 8, generator=random) * 0.3 + bright.view(-1, 1, 1, 1)
    sound = torch.randn(num, 2, 40, generator=random) * 0.3 + loud.view(-1, 1, 1)
    return {"image": image, "sound": sound, "label": 2 * bright + loud}


def test_image_and_sound_are_learned_together() -> None:
    torch.manual_seed(0)
    model = create_model(MU, num_classes=4, image_size=8, more_inputs=SOUND)
    learner = Learner(model, Classify())
    muon = {tensor.data_ptr() for tensor in find_muon_matrices(learner)}
    assert muon, "linear layers are orthogonalised"
    for table in (model.latents, *model.modality.values(), model.head.weight):
        assert table.data_ptr() not in muon, "rows that are not a linear map are not"
    optimizers = make_optimizers(learner, "muon", lr=0.02, weight_decay=0.05)
    fields, losses = both_fields(), []
    for _ in range(40):
        loss = learner(fields).mean()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        if len(losses) == 1:  # the head starts at zero, so the rest has gradients from the second step on
            assert all(bool(parameter.grad.any()) for parameter in model.parameters() if parameter.grad is not None)
            assert all(parameter.grad is not None for parameter in model.parameters())
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(4), abs=1e-4)
    assert losses[-1] < 0.3
