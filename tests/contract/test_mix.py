"""Every file of `nn/mix`: shapes with any stride, weights that are those of the output, FLOPs, bad settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.conftest import fill
from vitrail import create_model, plug
from vitrail.catalogue import list_models, spec_named, timm_name
from vitrail.errors import ExportError, SpecError, UnknownNameError, WeightsError
from vitrail.exports.graph import prepare_for_export
from vitrail.model.resnet import Spec
from vitrail.nn.conv import conv_flops
from vitrail.nn.relative import RelativeTable, axis_offsets
from vitrail.verbs.convert import save_weights

MIXES = "vitrail.nn.mix"
ENTRIES = plug.entries(MIXES)
ATTENDING = [name for name in ENTRIES if name != "conv"]
WINDOWED = [name for name in ENTRIES if "window" in plug.load(MIXES, name).Spec.model_fields]
SMALL: dict[str, Any] = {"image_size": 32, "num_classes": 10, "layers": (1, 2), "root_width": 32, "root_stride": 2}


def new_layer(name: str, *, stride: int = 1, channels: int = 32, **settings: Any) -> Any:
    module = plug.load(MIXES, name)
    small = {"window": 3} if name in WINDOWED else {}
    return fill(
        module.Layer(module.Spec.parse({"name": name, **small, **settings}), channels, stride=stride), 0.3
    ).eval()


def test_there_are_layers() -> None:
    assert set(WINDOWED) == {"sasa", "lrnet", "san_pairwise", "san_patchwise"}


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_has_what_a_network_needs(name: str) -> None:
    module = plug.load(MIXES, name)
    assert "arXiv" in module.__doc__
    spec = module.Spec()
    assert spec.name == name
    assert type(spec).parse_yaml(spec.to_yaml()) == spec
    spec.check(64, (14, 14))


@pytest.mark.parametrize("size", [(6, 6), (5, 7), (1, 4)], ids=str)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("name", ENTRIES)
def test_shapes_weights_and_flops(name: str, stride: int, size: tuple[int, int]) -> None:
    layer = new_layer(name, stride=stride).requires_grad_(False)
    x = torch.randn(2, 32, *size)
    out = -(-size[0] // stride), -(-size[1] // stride)
    assert layer(x).shape == (2, 32, *out)
    assert layer(x[:0]).shape == (0, 32, *out)
    if min(size) > 1:  # einsum multiplies by a single row without a product that the counter would see
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            layer(x[:1])
        assert counter.get_total_flops() == (conv_flops(layer, out) if name == "conv" else layer.flops(size))
    if name != "conv":
        weights = layer.weights(x)
        assert weights.shape == (2, weights.shape[1], out[0] * out[1], size[0] * size[1])


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("name", [*WINDOWED, "augmented"])
def test_weights_times_values_is_the_output(name: str, stride: int) -> None:
    layer, x = new_layer(name, stride=stride), torch.randn(2, 32, 5, 6)
    attention = getattr(layer, "attention", layer)
    with torch.no_grad():
        values = attention.value(x).unflatten(1, (attention.heads, -1)).flatten(3).mT
        expected = (layer.weights(x) @ values).mT.flatten(1, 2)
        assert (attention(x).flatten(2) - expected).abs().max() < 1e-5


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("name", ATTENDING)
def test_weights_sum_to_one(name: str, stride: int) -> None:
    with torch.no_grad():
        sums = new_layer(name, stride=stride).weights(torch.randn(1, 32, 5, 6)).sum(dim=-1)
    assert (sums.std() > 0.1) if name == "san_patchwise" else torch.allclose(sums, torch.ones(()), atol=1e-5)


@pytest.mark.parametrize("name", ATTENDING)
def test_only_what_a_cell_may_see_has_weight(name: str) -> None:
    """The output at a cell changes with exactly those cells of the input that have weight, and convolved ones."""
    layer = new_layer(name).double()
    x = torch.randn(1, 32, 5, 6, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(x)[0, :, 0, 1].sum(), x)
    depends = gradient[0].abs().sum(dim=0) > 1e-12
    seen = layer.weights(x)[0, :, 1].abs().sum(dim=0).view(5, 6) > 0
    assert torch.equal(depends, seen)
    assert int(seen.sum()) == (6 if name in WINDOWED else 30)  # a window of 3 at the upper border


@pytest.mark.parametrize("name", ENTRIES)
def test_training_in_bfloat16(name: str) -> None:
    layer, x = new_layer(name).train(), torch.randn(2, 32, 6, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer(x).float().square().mean().backward()
    assert all(bool(parameter.grad.isfinite().all()) for parameter in layer.parameters())
    with torch.no_grad():
        expected = layer(x)
        assert (layer.bfloat16()(x.bfloat16()) - expected).abs().max() < 0.1 * expected.abs().max()


def test_farther_offsets_share_the_last_embedding() -> None:
    table = RelativeTable(groups=1, reach=2, width=3)
    found = table(axis_offsets(5, 5))[0]
    assert torch.equal(found[0, 4], found[0, 2])
    assert torch.equal(found[4, 0], found[2, 0])
    assert not torch.equal(found[0, 1], found[0, 2])
    assert axis_offsets(2, 4, before=1).tolist() == [[-1, 0, 1, 2], [-2, -1, 0, 1]]


BAD: list[tuple[dict[str, Any], list[str]]] = [
    ({"mix": {"name": "sasa", "window": 4}}, ["window must be odd", "window=4", "window=5"]),
    ({"mix": {"name": "lrnet", "window": 0}}, ["window must be odd", "window=0", "window=1"]),
    ({"mix": {"name": "san_pairwise", "window": -3}}, ["window must be odd", "window=-3"]),
    ({"mix": "sasa"}, ["window must not exceed the grid", "window=7, a grid of 4 x 4", "window=3, or mix=conv"]),
    ({"mix": "san_patchwise", "layers": (1, 2, 2)}, ["window must not exceed the grid", "window=7, a grid of 4 x 4"]),
    ({"mix": {"name": "sasa", "window": 3, "heads": 5}}, ["heads must divide width", "heads=5, width=32"]),
    ({"mix": {"name": "sasa", "window": 3, "heads": 32}}, ["heads must have an even width", "rows", "heads=1, 2, 4"]),
    ({"mix": {"name": "axial", "heads": 3}}, ["heads must divide width", "heads=3, width=32"]),
    ({"mix": {"name": "axial", "heads": 0}}, ["heads must divide width", "heads=0"]),
    ({"mix": {"name": "axial", "heads": 32}}, ["heads must have an even width", "queries and keys"]),
    ({"mix": {"name": "augmented", "heads": 3}}, ["heads must divide width", "heads=3, width=8"]),
    ({"mix": {"name": "augmented", "share": 1.0}}, ["share", "less than 1"]),
    ({"mix": {"name": "lrnet", "window": 3, "share": 5}}, ["share must divide the channels", "share=5, 32 channels"]),
    (
        {"mix": {"name": "san_pairwise", "window": 3, "reduction": 3}},
        ["reduction must divide the channels", "reduction=1, 2, 4"],
    ),
    ({"root_width": 40}, ["root_width must be a multiple of 32", "root_width=40", "root_width=64"]),
    ({"conv_stages": 4}, ["conv_stages must leave a stage", "conv_stages=4, 4 stages", "mix=conv"]),
]


@pytest.mark.parametrize(("fields", "words"), BAD)
def test_bad_settings_are_rejected_when_they_are_parsed(fields: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        Spec.parse({"image_size": 32, "root_width": 32, "root_stride": 2, **fields})
    for word in words:
        assert word in str(caught.value)


def test_an_unknown_layer_lists_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"no mix has this name(.|\n)*sasa"):
        Spec.parse({"mix": "sassa"})


def test_a_window_may_be_as_large_as_the_smallest_map_that_it_is_used_on() -> None:
    """The last stage's only unit attends before it halves the map, and stages of convolutions do not count."""
    fields: dict[str, Any] = {"image_size": 56, "root_stride": 2, "mix": {"name": "sasa", "window": 7}}
    assert list(Spec.parse(fields).smallest_maps()) == [(28, 28), (14, 14), (7, 7), (7, 7)]
    with pytest.raises(SpecError, match="a grid of 4 x 4"):
        Spec.parse({**fields, "layers": (1, 2, 4, 2)})


def test_stages_of_convolutions_come_first() -> None:
    model = create_model(Spec.parse({**SMALL, "mix": "axial", "conv_stages": 1}))
    first, second = (stage.blocks[0].conv2 for stage in model.stages)
    assert isinstance(first, nn.Conv2d)
    assert hasattr(second, "weights")


NAMES = [name for name in list_models() if name.startswith(("resnet26", "san10"))]


def test_every_layer_has_a_name_for_photos_and_one_for_small_images() -> None:
    assert {spec_named(name).mix.name for name in NAMES} == set(ENTRIES)
    assert {f"{name}_32" for name in NAMES if not name.endswith("_32")} == {n for n in NAMES if n.endswith("_32")}
    assert spec_named("resnet26_sasa").mix.window == 7
    assert spec_named("resnet26_sasa_32").mix.window == 3
    assert spec_named("resnet26_lrnet_64").mix.window == 7
    with pytest.raises(SpecError, match=r"too small for windows(.|\n)*8 pixels(.|\n)*resnet26_sasa_32"):
        spec_named("resnet26_sasa_8")


@pytest.mark.parametrize("name", NAMES)
def test_timm_has_none_of_them(name: str) -> None:
    """Its own resnet26 is another network."""
    assert timm_name(name, spec_named(name)) == ""


@pytest.mark.parametrize("mix", ["conv", "axial"])
@pytest.mark.parametrize("form", plug.entries("vitrail.weights.format"))
def test_other_projects_have_no_place_for_their_weights(mix: str, form: str, tmp_path: Path) -> None:
    model = create_model(Spec.parse({**SMALL, "mix": mix}))
    with pytest.raises(WeightsError, match=f"has none of these ResNets(.|\n)*mix={mix}"):
        save_weights(model, tmp_path / "out", to=form)
    assert not (tmp_path / "out").exists()


def test_a_network_with_attention_is_exported_for_one_image_size() -> None:
    prepare_for_export(create_model(Spec.parse(SMALL)), dynamic=True)
    with pytest.raises(ExportError, match=r"fixed image size(.|\n)*mix=axial(.|\n)*--size"):
        prepare_for_export(create_model(Spec.parse({**SMALL, "mix": "axial"})), dynamic=True)


def test_the_same_weights_give_the_same_network_as_bit() -> None:
    """With convolutions, a width of 64 and a root for photos, it is BiT."""
    fields: dict[str, Any] = {"image_size": 64, "num_classes": 10, "layers": (1, 1, 1, 1)}
    ours, bit = create_model("resnet26", **fields).eval(), fill(create_model("resnetv2_50x1_bit", **fields)).eval()
    ours.load_state_dict(bit.state_dict())
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(ours(x), bit(x))
    assert ours.flops() == bit.flops()
