"""A Perceiver in a run: trained, evaluated, resumed, exported, explained, reported; and what it cannot do, by name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.conftest import fill
from tests.contract.colours import learn, write_colours
from tests.contract.small_images import write_folder
from tests.contract.small_models import random_image
from vitrail import create_model, evaluate, explain, export, load, plug, train
from vitrail.errors import ExportError, InspectionError, SpecError, WeightsError
from vitrail.exports.build import FORMATS
from vitrail.exports.graph import prepare_for_export
from vitrail.inspection.embedding import filters
from vitrail.inspection.figures import write_figures
from vitrail.inspection.latents import iter_reading, trace_latents
from vitrail.inspection.page import page_data
from vitrail.inspection.sample import sample_evenly

NAME = "perceiver_mu_16"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a Perceiver that classifies colours from single pixels."""
    folder = tmp_path_factory.mktemp("perceiver")
    write_colours(folder / "data", {"train": 30, "val": 10})
    learn(folder / "data", folder / "run", model=NAME)
    return folder


@pytest.fixture(scope="module")
def model() -> Any:
    return fill(create_model(NAME, num_classes=4, cross_heads=3, num_stages=3), 0.3).eval()


def test_a_run_learns_and_is_opened_again(home: Path) -> None:
    assert evaluate(home / "run", home / "data").top1 > 0.9
    run = load(home / "run")
    assert type(run).__name__ == "Perceiver"
    assert run.spec.image_size == run.spec.resolution == (16, 16)
    report = (home / "run" / "report.html").read_text()
    assert report.count("data:image/jpeg") > 2, "errors are shown with what supports their class"


def test_training_continues_from_its_weights(home: Path, tmp_path: Path) -> None:
    train(home / "data", weights=home / "run", recipe="finetune", run=tmp_path / "run", settings=["steps=2"])
    assert load(tmp_path / "run").spec.resolution == (16, 16)


def test_patches_are_explained_and_exported_at_any_size(home: Path, tmp_path: Path) -> None:
    learn(home / "data", tmp_path / "run", "steps=2", model="perceiver_mu_patch4_16")
    proof = export(
        tmp_path / "run", format="onnx", data=home / "data", out=tmp_path / "out", dynamic=True, seconds=0.02
    )
    assert proof["max_logit_diff"] < 1e-4
    assert proof["other_size"]["max_logit_diff"] < 1e-3
    found = explain(fill(load(tmp_path / "run"), 0.3).eval(), random_image())
    assert found.heatmaps["relevance"].shape[1:] == (4, 4)
    page = found.page()
    assert re.search(r"Each of the 4 . 4 patches of 4 . 4 pixels is an input", page)
    assert "read the patches" in page
    assert "the patches are not changed" in page
    assert not re.search("(the|The) pixels", re.sub(r"(?s)<script.*?</script>", "", page))
    assert (page_data(found)["attention"]["latents"], page_data(found)["attention"]["inputs"]) == (8, "patches")


@pytest.mark.parametrize("form", plug.entries(FORMATS))
def test_exports_compute_the_same(form: str, home: Path, tmp_path: Path) -> None:
    dynamic = form == "onnx"  # any image size
    options: dict[str, Any] = {"data": home / "data", "dynamic": dynamic, "seconds": 0.02}
    proof = export(home / "run", format=form, out=tmp_path / "out", **options)
    assert proof["agreement"] == 1.0
    assert proof["max_logit_diff"] < 1e-4
    assert not dynamic or proof["other_size"]["max_logit_diff"] < 1e-3


def test_what_it_cannot_do_is_said_by_name(home: Path, tmp_path: Path, model: Any) -> None:
    with pytest.raises(ExportError, match=r"only for Vision Transformers of a fixed image size.\n.*Perceiver"):
        prepare_for_export(model, merge=2)
    with pytest.raises(SpecError, match=r"needs a Vision Transformer"):
        train(home / "data", recipe="pretrain", model=NAME, run=tmp_path / "run")
    with pytest.raises(WeightsError, match="timm has no place for this architecture"):
        plug.load("vitrail.weights.format", "timm").write(model.state_dict(), {})
    with pytest.raises(InspectionError, match=r"Grad-CAM needs features on a grid[\s\S]*relevance or --method rollout"):
        explain(model, random_image(), methods=["gradcam"])
    with pytest.raises(InspectionError, match=r"no linear patch embedding.*\n.*Got a Perceiver\.\n"):
        filters(model)
    both = create_model(NAME, more_inputs=[{"name": "sound", "size": [9]}])
    with pytest.raises(InspectionError, match=r"does not take images.\n.*takes image and sound"):
        explain(both, random_image())


def test_the_command_explains_a_run(home: Path, tmp_path: Path) -> None:
    images = sorted((home / "data" / "val").rglob("*.png"))[:1]
    (found,) = plug.import_from("vitrail.verbs.explain", "explain")(home / "run", images, out=tmp_path)
    assert found.still.is_file()
    assert "Each of the 256 pixels is an input" in found.page.read_text()


def test_heatmaps_have_a_value_for_each_pixel(model: Any) -> None:
    found = explain(model, random_image())
    assert set(found.heatmaps) == {"relevance", "rollout"}
    for maps in found.heatmaps.values():
        assert maps.shape == (4, 16, 16)
        assert (maps >= 0).all()
        assert maps.max() > 0
    assert len(found.figure().axes) == 9
    stages = list(found.attention())
    assert [each.shape for each in stages] == [(3, 8, 256)] * 3
    assert all(np.allclose(each.sum(axis=-1), 1.0, atol=1e-5) for each in stages)


def test_the_page_has_the_reading_of_each_latent_and_their_mean(model: Any) -> None:
    data = page_data(explain(model, random_image()))["attention"]
    assert (data["layers"], data["heads"], data["rows"], data["latents"], data["prefix"]) == (3, 3, 9, 8, [])
    json.dumps(data)


def test_the_trace_equals_the_forward_pass(model: Any) -> None:
    """The recorded steps, applied by hand with explicit attention matrices."""
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        traced = trace_latents(model, images)
        assert torch.equal(traced.logits, model(images))
        assert [step.context is not None for step in traced.steps] == [True, False] * 3
        for step, following in zip(traced.steps, traced.steps[1:], strict=False):
            block, z = step.block, step.latents.x
            z = z + block.attn.merge(step.weights() @ step.values())
            assert torch.allclose(z + block.mlp(block.norm2(z)), following.latents.x, atol=1e-5)
    assert all(not block._forward_pre_hooks for block in (*model.cross, *model.blocks)), "the model is left as it was"


def test_a_latent_that_reads_one_pixel_is_shown_so() -> None:
    """Queries that ask for brightness alone: the brightest pixel is what is read, in every map."""
    model = create_model(NAME, num_classes=3, num_stages=1, num_latents=2).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.input_norm.weight[:3] = 1.0
        attn, width = model.cross[0].attn, model.spec.inner_width
        attn.q.bias[0] = 50.0
        attn.kv.weight[0, :3] = 1.0  # the key of a pixel is its brightness
        attn.kv.weight[width, :3] = 1.0  # and so is its value
        attn.proj.weight[0, 0] = 1.0
        model.norm.weight.fill_(1.0)
        model.head.weight[1, 0] = 1.0
    images = torch.zeros(1, 3, 16, 16)
    images[..., 11, 5] = 4.0
    (read,) = iter_reading(model, images)
    assert divmod(int(read[0, 0, 1].argmax()), 16) == (11, 5)
    for method in ("rollout", "relevance"):
        heatmap: Tensor = plug.load("vitrail.inspection.method", method).compute_heatmaps(model, images, [1])[0]
        assert divmod(int(heatmap.argmax()), 16) == (11, 5), method
        assert heatmap.flatten().sort().values[-2] < 0.1 * heatmap.max(), method


def test_relevance_equals_its_definition(model: Any) -> None:
    """A forward pass with explicit attention matrices, and their gradients by autograd."""
    images = torch.randn(1, 3, 16, 16)
    tokens = model.tokenize(images)
    inputs = tokens.with_x(model.input_norm(tokens.x))
    latents = tokens._replace(x=model.latents, layout=model.spec.latent_layout)
    matrices: list[tuple[Tensor, bool]] = []
    for block in model.iter_blocks():
        normed = latents.with_x(block.norm1(latents.x))
        context = (inputs,) if block.attn.weights.__qualname__.startswith("Cross") else ()
        weights = block.attn.weights(normed, *context)
        weights.retain_grad()
        matrices.append((weights, bool(context)))
        z = latents.x + block.attn.merge(weights @ block.attn.split(normed, *context)[2])
        latents = latents.with_x(z + block.mlp(block.norm2(z)))
    model.classify(latents.with_x(model.norm(latents.x)))[0, 2].backward()
    flow = torch.zeros(8, 256)
    for weights, crosses in matrices:
        assert weights.grad is not None
        paths = (weights * weights.grad).clamp_min(0).mean(dim=1)[0].detach()
        flow = flow + (paths if crosses else paths @ flow)
    found = plug.load("vitrail.inspection.method", "relevance").compute_heatmaps(model, images, [2])[0]
    expected = flow.mean(dim=0).view(16, 16)
    assert torch.allclose(found, expected, atol=1e-5 * expected.max().item())
    model.zero_grad()


def test_rollout_sums_to_what_has_been_read(model: Any) -> None:
    """Half of each latent is what it held before, so the learned start keeps (1/2)^steps after a cross-attention."""
    rolled = plug.load("vitrail.inspection.method", "rollout").compute_heatmaps(model, torch.randn(1, 3, 16, 16), [0])
    kept = 1.0
    for crosses in [True, False] * 3:
        kept = kept / 2 if crosses else kept
    assert rolled.sum().item() == pytest.approx(1 - kept, abs=1e-4)


def test_figures_that_apply(model: Any, tmp_path: Path) -> None:
    sample = sample_evenly(write_folder(tmp_path / "images"), 3, model.preprocess)
    files = write_figures(model, sample, tmp_path / "figures")
    assert {path.stem for path in files} == {"attention", "faithfulness", "figures"}
    with pytest.raises(InspectionError, match="do not attend to each other in this model: latents read them"):
        write_figures(model, sample, tmp_path / "more", names=["distance"])
