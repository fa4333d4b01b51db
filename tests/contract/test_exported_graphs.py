"""The exported graph computes what the model does, for every size and kind of model, and only what the head reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.contract.small_models import RESNETS, SMALL, small
from vitrail import create_model, plug
from vitrail.engine.exported import RUNTIMES, open_exported
from vitrail.errors import ExportError
from vitrail.exports.build import FORMATS, metadata_for
from vitrail.exports.graph import Graph, prepare_for_export, resize_matrix, resize_model, resize_table_in_graph
from vitrail.exports.sensitivity import rank_layers
from vitrail.exports.tracing import Tracer, example
from vitrail.nn.position import resize_table
from vitrail.tokens import Layout

FORMATS_TO_TRY = plug.entries(FORMATS)
SIZES = ((224, 224), (384, 384), (160, 288))


@pytest.fixture(scope="module")
def traced() -> Tracer:
    """A model with a class token, traced once."""
    return Tracer(Graph(prepare_for_export(small("class token"))))


def _max_logit_diff(model: Any, opened: Any, size: tuple[int, int]) -> float:
    pixels = np.random.default_rng(0).integers(0, 256, (3, *size, 3), dtype=np.uint8)
    preprocess = model.preprocess.override({"size": size})
    with torch.inference_mode():
        expected = model(preprocess.normalise(pixels))
        return (opened(torch.from_numpy(pixels).permute(0, 3, 1, 2)) - expected).abs().max().item()


def _export(tracer: Tracer, form: str, folder: Path, **changed: Any) -> Any:
    path = folder / plug.load(RUNTIMES, form).FILE
    metadata = {**metadata_for(tracer, "fp32"), **changed}
    plug.load(FORMATS, form).write(tracer, path, "fp32", metadata, pixels=np.zeros((0, 1, 1, 3)), float_layers=())
    return open_exported(path)


@pytest.mark.parametrize(
    ("kind", "forms"),
    [("class token", FORMATS_TO_TRY), ("axial", ["pt2"]), ("dinov3", ["onnx", "pt2"])],
)
def test_one_dynamic_graph_takes_every_size(tmp_path: Path, kind: str, forms: list[str]) -> None:
    model = small(kind)
    tracer = Tracer(Graph(prepare_for_export(model, dynamic=True)), dynamic=True)
    for form in forms:
        opened = _export(tracer, form, tmp_path)
        for size in SIZES:
            assert _max_logit_diff(model, opened, size) < 1e-4, (form, size)


@pytest.mark.parametrize(
    ("kind", "size", "forms"),
    [
        ("class token", (384, 384), ["openvino"]),
        ("class token", (160, 288), FORMATS_TO_TRY),
        ("dinov3", (160, 288), ["pt2"]),
    ],
)
def test_a_model_is_exported_at_another_fixed_size(
    tmp_path: Path, kind: str, size: tuple[int, int], forms: list[str]
) -> None:
    model = small(kind)
    tracer = Tracer(Graph(prepare_for_export(resize_model(model, size))))
    for form in forms:
        opened = _export(tracer, form, tmp_path)
        assert opened.preprocess.size == size
        assert _max_logit_diff(model, opened, size) < 1e-4, form


KINDS = {
    **{kind: {} for kind in [*SMALL, *RESNETS] if kind != "class token"},
    "scaled": {"layer_scale": 0.5, "qkv_bias": False},
}


def test_filters_are_standardised_before_the_export() -> None:
    """Then a graph holds convolutions with constant weights, which can be rounded to 8 bits."""
    model = small("resnet, resnet26")
    images = torch.rand(2, 3, *model.preprocess.size)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    prepared = prepare_for_export(model)
    with torch.inference_mode():
        assert torch.equal(prepared(images), model(images))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    graph = Tracer(Graph(prepared)).onnx_model.graph
    constants = {tensor.name for tensor in graph.initializer}
    assert all(node.input[1] in constants for node in graph.node if node.op_type == "Conv")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_is_exported(tmp_path: Path, kind: str) -> None:
    model = small("class token" if kind == "scaled" else kind, **KINDS[kind])
    tracer = Tracer(Graph(prepare_for_export(model)))
    for form in ("pt2", "openvino"):  # OpenVINO starts from the ONNX graph
        assert _max_logit_diff(model, _export(tracer, form, tmp_path), model.preprocess.size) < 1e-4, form
    tracer.graph.model.bfloat16()
    with torch.inference_mode():
        assert bool(tracer.graph(example(tracer.graph))[0].isfinite().all())


@pytest.mark.parametrize(
    ("kind", "num"), [("class token", 1), ("distilled", 2), ("registers", 1), ("dinov3", 1), ("mean pooling", 196)]
)
def test_the_last_block_computes_only_what_the_head_reads(kind: str, num: int) -> None:
    model = small(kind)
    exported = prepare_for_export(model)
    images = torch.randn(2, 3, 224, 224)
    with torch.inference_mode():
        assert exported.encode(exported.tokenize(images)).x.shape[1] == num
        assert torch.allclose(exported(images), model(images), atol=1e-5)
        assert model.encode(model.tokenize(images)).x.shape[1] >= 196  # the original is unchanged


@pytest.mark.parametrize("form", ["onnx", "openvino"])
def test_the_last_block_is_quantized(tmp_path: Path, form: str, traced: Tracer) -> None:
    """Its logits stay close, and its layers can stay in float."""
    model, tracer = small("class token"), traced
    pixels = np.random.default_rng(0).integers(0, 256, (8, 224, 224, 3), dtype=np.uint8)
    with torch.inference_mode():
        expected = model(model.preprocess.normalise(pixels))
    path, sizes = tmp_path / plug.load(RUNTIMES, form).FILE, []
    for float_layers in ((), ("blocks.1.attn.q", "blocks.1.attn.kv")):
        assert len(tracer.nodes(float_layers)) == len(float_layers)
        metadata = metadata_for(tracer, "int8")
        plug.load(FORMATS, form).write(tracer, path, "int8", metadata, pixels=pixels, float_layers=float_layers)
        opened = open_exported(path)
        logits = opened(opened.preprocess.normalise(pixels))
        assert (logits - expected).abs().max() < 0.1 * expected.abs().max()
        sizes.append(sum(file.stat().st_size for file in tmp_path.glob("model.*")))
    assert sizes[1] > sizes[0]  # larger by the float weights of these layers


@pytest.mark.parametrize("changed", [{"labels": ["one"]}, {"preprocess": {"size": "large"}}, {"calibration": None}])
def test_a_file_with_wrong_metadata_is_rejected(tmp_path: Path, changed: dict[str, Any], traced: Tracer) -> None:
    with pytest.raises(ExportError, match="is not a model written by vitrail export"):
        _export(traced, "onnx", tmp_path, **changed)


def test_tokens_with_rotary_positions_cannot_be_merged() -> None:
    with pytest.raises(ExportError, match="--merge does not work with rotary positions"):
        prepare_for_export(small("dinov3"), merge=8)


def test_local_attention_cannot_be_dynamic() -> None:
    with pytest.raises(ExportError, match=r"local attention is exported for a fixed image size(.|\n)*--size"):
        prepare_for_export(small("local"), dynamic=True)


def test_sine_positions_cannot_be_dynamic() -> None:
    with pytest.raises(ExportError, match="sine position embeddings cannot be resized"):
        prepare_for_export(create_model("vit_mu_patch16_224", position="sincos_2d"), dynamic=True)


@pytest.mark.parametrize("rule", ["bicubic", "zoom"])
@pytest.mark.parametrize("new", [(14, 14), (24, 24), (7, 9), (10, 31), (3, 1)])
def test_positions_resized_in_the_graph_match_the_model(rule: str, new: tuple[int, int]) -> None:
    old = Layout((14, 14), 1)
    table = torch.randn(1, old.num_tokens, 8)
    expected = resize_table(table, old, Layout(new, 1), rule)
    assert torch.allclose(resize_table_in_graph(table, old, new, rule), expected, atol=1e-5)
    assert torch.allclose(resize_matrix(14, new[1], rule).sum(dim=1), torch.ones(new[1]))


def test_the_most_sensitive_layer_is_ranked_first() -> None:
    model = small("class token")
    with torch.no_grad():
        model.blocks[1].mlp.fc1.weight[:, 0] = 40.0  # one large weight per row leaves no levels for the others
    images = torch.randn(8, 3, 224, 224)
    before = model(images)
    assert rank_layers(model, images)[0] == "blocks.1.mlp.fc1"
    assert torch.equal(model(images), before)  # unchanged
