"""The graph that leaves computes what the model does, at every size and of every kind, and only what the head reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.contract.small_models import SMALL, small
from vitrail import create_model, plug
from vitrail.engine.exported import RUNTIMES, open_exported
from vitrail.errors import ExportError
from vitrail.exports import build
from vitrail.exports.build import FORMATS
from vitrail.exports.graph import Graph, at_size, leaving, resize_matrix, resized_in_graph
from vitrail.exports.sensitivity import worst_layers
from vitrail.exports.traced import Traced
from vitrail.nn.position import resize_table
from vitrail.tokens import Layout

FORMATS_TO_TRY = plug.entries(FORMATS)
SIZES = ((224, 224), (384, 384), (160, 288))


def _same(model: Any, opened: Any, size: tuple[int, int]) -> float:
    pixels = np.random.default_rng(0).integers(0, 256, (3, *size, 3), dtype=np.uint8)
    prepare = model.preprocess.override({"size": size})
    with torch.inference_mode():
        wanted = model(prepare.normalise(pixels))
        return (opened(torch.from_numpy(pixels).permute(0, 3, 1, 2)) - wanted).abs().max().item()


def _written(traced: Traced, form: str, folder: Path, **changed: Any) -> Any:
    path = folder / plug.load(RUNTIMES, form).FILE
    facts = {**build.facts_for(traced, "fp32"), **changed}
    plug.load(FORMATS, form).write(traced, path, "fp32", facts, pixels=np.zeros((0, 1, 1, 3)), keep=())
    return open_exported(path)


def test_any_size_in_one_graph(tmp_path: Path) -> None:
    model = small("class token")
    traced = Traced(Graph(leaving(model, dynamic=True)), dynamic=True)
    for form in FORMATS_TO_TRY:
        opened = _written(traced, form, tmp_path)
        for size in SIZES:
            assert _same(model, opened, size) < 1e-4, (form, size)


@pytest.mark.parametrize("size", SIZES[1:])
def test_another_size_fixed(tmp_path: Path, size: tuple[int, int]) -> None:
    model = small("class token")
    traced = Traced(Graph(leaving(at_size(model, size))))
    for form in FORMATS_TO_TRY:
        opened = _written(traced, form, tmp_path)
        assert opened.preprocess.size == size
        assert _same(model, opened, size) < 1e-4, form


KINDS = {**{kind: {} for kind in SMALL if kind != "class token"}, "scaled": {"layer_scale": 0.5, "qkv_bias": False}}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_leaves(tmp_path: Path, kind: str) -> None:
    model = small(kind if kind in SMALL else "class token", **KINDS[kind])
    traced = Traced(Graph(leaving(model)))
    for form in ("pt2", "openvino"):  # OpenVINO's is ONNX's graph
        assert _same(model, _written(traced, form, tmp_path), model.preprocess.size) < 1e-4, form


@pytest.mark.parametrize(
    ("kind", "num"), [("class token", 1), ("distilled", 2), ("registers", 1), ("mean pooling", 196)]
)
def test_the_last_block_computes_what_the_head_reads(kind: str, num: int) -> None:
    model = small(kind)
    left = leaving(model)
    images = torch.randn(2, 3, 224, 224)
    with torch.inference_mode():
        assert left.encode(left.tokenize(images)).x.shape[1] == num
        assert torch.allclose(left(images), model(images), atol=1e-5)
        assert model.encode(model.tokenize(images)).x.shape[1] >= 196  # the one that was given is as it was


@pytest.mark.parametrize("form", ["onnx", "openvino"])
def test_the_last_block_in_eight_bits(tmp_path: Path, form: str) -> None:
    """True to the model, and its parts can stay in float."""
    model = small("class token")
    traced = Traced(Graph(leaving(model)))
    pixels = np.random.default_rng(0).integers(0, 256, (16, 224, 224, 3), dtype=np.uint8)
    with torch.inference_mode():
        wanted = model(model.preprocess.normalise(pixels))
    path, sizes = tmp_path / plug.load(RUNTIMES, form).FILE, []
    for keep in ((), ("blocks.1.attn.q", "blocks.1.attn.kv")):
        assert len(traced.nodes(keep)) == len(keep)
        facts = build.facts_for(traced, "int8")
        plug.load(FORMATS, form).write(traced, path, "int8", facts, pixels=pixels, keep=keep)
        opened = open_exported(path)
        found = opened(opened.preprocess.normalise(pixels))
        assert (found - wanted).abs().max() < 0.1 * wanted.abs().max()
        sizes.append(sum(file.stat().st_size for file in tmp_path.glob("model.*")))
    assert sizes[1] > sizes[0]  # by the weights of these layers


@pytest.mark.parametrize("changed", [{"labels": ["one"]}, {"preprocess": {"size": "large"}}, {"calibration": None}])
def test_a_file_that_lies_about_itself_is_told(tmp_path: Path, changed: dict[str, Any]) -> None:
    traced = Traced(Graph(leaving(small("class token"))))
    with pytest.raises(ExportError, match="is no model that vitrail export wrote"):
        _written(traced, "pt2", tmp_path, **changed)


def test_a_table_of_sines_keeps_its_size() -> None:
    with pytest.raises(ExportError, match="sines cannot be resized"):
        leaving(create_model("vit_mu_patch16_224", position="sincos_2d"), dynamic=True)


@pytest.mark.parametrize("rule", ["bicubic", "zoom"])
@pytest.mark.parametrize("new", [(14, 14), (24, 24), (7, 9), (10, 31), (3, 1)])
def test_positions_in_the_graph_are_those_of_the_model(rule: str, new: tuple[int, int]) -> None:
    old = Layout((14, 14), 1)
    table = torch.randn(1, old.num_tokens, 8)
    wanted = resize_table(table, old, Layout(new, 1), rule)
    assert torch.allclose(resized_in_graph(table, old, new, rule), wanted, atol=1e-5)
    assert torch.allclose(resize_matrix(14, new[1], rule).sum(dim=1), torch.ones(new[1]))


def test_the_worst_layer_is_found() -> None:
    model = small("class token")
    with torch.no_grad():
        model.blocks[1].mlp.fc1.weight[:, 0] = 40.0  # one weight of each row leaves no levels for the others
    images = torch.randn(8, 3, 224, 224)
    before = model(images)
    assert worst_layers(model, images)[0] == "blocks.1.mlp.fc1"
    assert torch.equal(model(images), before)  # as it was
