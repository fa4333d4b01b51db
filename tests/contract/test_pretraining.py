"""Pretraining without labels, from the folder of images to the run that starts from it."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.contract import forked
from tests.contract.disturbed import KILLED, wait_until
from tests.contract.forked import bits
from tests.contract.ranks import losses, run_two_ranks
from tests.contract.small_images import write_folder
from tests.forge import Forge, command
from vitrail.errors import DataError, InspectionError, RunError, SpecError, TrainError
from vitrail.inspection.reconstruction import DECODER, open_pretrained
from vitrail.run.artefact import load
from vitrail.verbs.explain import explain
from vitrail.verbs.predict import predict
from vitrail.verbs.train import train
from vitrail.weights import tensor_files

TARGETS = ("mae", "downsized")
FAST = ("batch_size=8", "precision=float32", "workers=0", "eval_every=4", "save_every=2", "decoder_width=16")
SHORT = ("steps=8", "seed=4")
MODEL = "vit_mu_patch4_16"


def words_of(data: Path, run: Path, *more: str) -> list[str]:
    return ["train", str(data), "--recipe", "pretrain", "--model", MODEL, "--run", str(run), *FAST, *SHORT, *more]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images") / "photos"
    write_folder(root, 60)
    return root


@pytest.fixture(scope="module")
def runs(data: Path, tmp_path_factory: pytest.TempPathFactory, forge: Forge) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    paths = {target: folder / target for target in TARGETS}
    for target, path in paths.items():
        log = folder / f"{target}.log"
        assert forge.run(command, words_of(data, path, f"target={target}"), log=log) == 0, log.read_text()
    return paths


def test_a_backbone_without_its_decoder(runs: dict[str, Path]) -> None:
    for target, path in runs.items():
        model = load(path)
        assert model.spec.num_classes == 0
        assert model.about.kind == "pretraining"
        stored = tensor_files.read_tensors(path / "model.safetensors")
        assert stored.keys() == model.state_dict().keys()
        decoder = tensor_files.read_tensors(path / DECODER)
        assert "predictor.weight" in decoder
        assert not stored.keys() & {"predictor.weight", "mask_token"}
        result = json.loads((path / "result.json").read_text())
        assert result["val"]["masked_loss"] > 0
        assert 0 <= result["val"]["knn"] <= 1
        page = (path / "report.html").read_text()
        assert "Reconstructions" in page
        assert "decoder.safetensors</code> what predicts hidden patches" in page
        assert target in (path / "README.md").read_text()
        lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines if "val_knn" in line] == [4, 8]


def test_only_features_without_labels_are_called_so(runs: dict[str, Path], data: Path, tmp_path: Path) -> None:
    """Weights to go on from may have been trained with labels."""
    words = [*FAST, "steps=1", "lr=1e-12"]
    train(data, weights=runs["mae"], recipe="pretrain", run=tmp_path / "more", settings=words)
    for run, weights in ((runs["mae"], None), (tmp_path / "more", str(runs["mae"]))):
        page, card = ((run / name).read_text() for name in ("report.html", "README.md"))
        assert ("has not seen a label" in page) == ("without having seen a label" in card) == (weights is None)
        if weights is not None:
            assert f"started from {weights}" in page
            assert f"started from {weights}" in card


def test_training_starts_from_it(runs: dict[str, Path], data: Path, tmp_path: Path) -> None:
    result = train(
        data,
        weights=runs["mae"],
        recipe="finetune",
        run=tmp_path / "tuned",
        settings=["steps=1", "batch_size=8", "lr=1e-12"],
    )
    assert result.steps == 1
    tuned, pretrained = load(tmp_path / "tuned").state_dict(), load(runs["mae"]).state_dict()
    assert torch.allclose(tuned["blocks.0.mlp.fc1.weight"], pretrained["blocks.0.mlp.fc1.weight"], atol=1e-6)
    again = train(
        data,
        weights=runs["mae"],
        recipe="pretrain",
        run=tmp_path / "more",
        settings=[*FAST, "steps=1", "lr=1e-12"],
    )
    assert again.steps == 1
    more = load(tmp_path / "more").state_dict()
    assert torch.allclose(more["blocks.0.mlp.fc1.weight"], pretrained["blocks.0.mlp.fc1.weight"], atol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_reconstructions_are_shown(target: str, runs: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "noise.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)).save(path)
    (found,) = explain(runs[target], [path], out=tmp_path / "out")
    page = found.page.read_text()
    assert page.count("<img") == 9
    assert "original" in page
    with Image.open(found.still) as still:
        assert min(still.size) > 400
    assert "on hidden patches" in found.summary
    with pytest.raises(InspectionError, match="no classes"):
        explain(runs[target], [path], out=tmp_path / "out", classes=["a"])


def test_a_reconstruction_uses_the_stored_decoder(runs: dict[str, Path]) -> None:
    decoder = tensor_files.read_tensors(runs["mae"] / DECODER)
    opened = open_pretrained(runs["mae"])
    for name, parameter in opened.objective.named_parameters():
        assert torch.equal(parameter, decoder[name])


def test_it_does_not_classify(runs: dict[str, Path], data: Path) -> None:
    with pytest.raises(RunError, match="has no classifier yet"):
        list(predict(runs["mae"], [data]))


def test_unlabelled_images(tmp_path: Path) -> None:
    """A flat folder; 5 % of its files are broken."""
    folder = tmp_path / "flat"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(40):
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(folder / f"{number:02d}.png")
    for number in (7, 23):
        (folder / f"{number:02d}.png").write_bytes(b"broken")
    options: dict[str, Any] = {"recipe": "pretrain", "model": MODEL}
    with pytest.raises(DataError, match=r"(07|23)\.png"):
        train(folder, **options, run=tmp_path / "strict", settings=[*FAST, *SHORT])
    result = train(folder, **options, run=tmp_path / "kind", settings=[*FAST, *SHORT, "on_error=skip"])
    assert result.steps == 8
    assert result.val["knn"] is None
    assert "Skipped 2 unreadable images" in " ".join(result.story)


def test_a_collapse_ends_the_run_with_its_step_and_its_accuracy(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features that have become the same roll the run back, and in the end stop it; the last good weights stay."""
    from vitrail.objective.masked_image import base

    monkeypatch.setattr(base, "MIN_SPREAD", 1e9)
    with pytest.raises(
        TrainError, match=r"at step 4 the features .* the same \(nearest neighbours [0-9.]+ %\)"
    ) as stop:
        train(data, recipe="pretrain", model=MODEL, run=tmp_path / "run", settings=[*FAST, *SHORT])
    assert "is the last good checkpoint" in str(stop.value)
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))


@pytest.mark.parametrize("target", TARGETS)
def test_a_learning_rate_far_too_high_really_breaks_it(target: str, data: Path, tmp_path: Path) -> None:
    """No evaluation of a diverged model counts as good, whatever the learning rate; the first checkpoint stays."""
    words = [*FAST, *SHORT, f"target={target}", "lr=1e6", "warmup=0.0", "eval_every=1", "ema=0.0"]
    with pytest.raises(TrainError, match=r"at step 1 .*, and smaller learning rates did not help") as stop:
        train(data, recipe="pretrain", model=MODEL, run=tmp_path / "run", settings=words)
    assert re.search(r"; at step 1, loss on hidden patches \S+, nearest neighbours [0-9.]+ %, linear", str(stop.value))
    assert "lr=100 in a new run" in str(stop.value), "smaller than all that were tried"
    assert "step-000000000 is the last good checkpoint" in str(stop.value)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*")] == ["step-000000000"]


def test_a_run_that_went_back_says_so(data: Path, tmp_path: Path) -> None:
    words = [*FAST, *SHORT, "lr=100.0", "warmup=0.0", "eval_every=1"]
    result = train(data, recipe="pretrain", model=MODEL, run=tmp_path / "run", settings=words)
    assert re.search(r"Training broke \d times .* with 0\.0\d*1 of the learning rate", " ".join(result.story))


@pytest.mark.parametrize("target", TARGETS)
def test_killed_at_random_ends_with_the_same_bits(
    target: str, data: Path, runs: dict[str, Path], tmp_path: Path, forge: Forge
) -> None:
    killed, notes = tmp_path / "killed", tmp_path / "notes"
    words, rng = words_of(data, killed, f"target={target}"), random.Random(0)
    for kill in range(2):
        notes.write_text("")
        pid = forge.start(command, words, partial(forked.note_steps, notes), log=tmp_path / "log")
        wait_until(lambda: len(notes.read_text().split()) > kill)  # noqa: B023 - called at once
        time.sleep(rng.uniform(0.0, 0.05))
        os.kill(pid, signal.SIGKILL)
        assert forge.wait(pid) == KILLED
    assert forge.run(command, words, log=tmp_path / "log") == 0, (tmp_path / "log").read_text()
    assert bits(killed) == bits(runs[target])
    assert (killed / DECODER).read_bytes() == (runs[target] / DECODER).read_bytes()


@pytest.mark.parametrize("target", TARGETS)
def test_two_processes_agree(target: str, data: Path, tmp_path: Path, forge: Forge) -> None:
    more = (f"target={target}", "optimizer=sgd", "lr=0.05", "warmup=0.0", "eval_every=2")
    alone, together = tmp_path / "alone", tmp_path / "together"
    assert forge.run(command, words_of(data, alone, *more), log=tmp_path / "log") == 0, (tmp_path / "log").read_text()
    run_two_ranks(words_of(data, together, *more), tmp_path)
    assert len(losses(alone)) >= 8
    assert losses(together) == pytest.approx(losses(alone), abs=1e-5)


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["mask_rate=0"], "mask_rate"),
        (["mask_rate=1"], "mask_rate"),
        (["augment.mixup=0.2"], "mixed images are for labels"),
        (["augment_strength=strong"], "stronger augmentation is for labels"),
        (["target=words"], "target"),
        (["model.attention=axial"], "axial attention needs the whole grid"),
        (["sam=0"], "sam"),
        (["sam=-0.1"], "sam"),
        (["decoder_width=100"], r"Got decoder_width=100.\n  Try a multiple of 32"),
        (["decoder_width=66"], "Got decoder_width=66"),
        (["decoder_width=4"], "Got decoder_width=4"),
        (["model.image_size=4"], "an image needs at least 2"),
    ],
)
def test_bad_settings(words: list[str], match: str, data: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=match):
        train(data, recipe="pretrain", model=MODEL, run=tmp_path / "run", settings=words)
    assert not (tmp_path / "run").exists()


def test_bad_models_and_data(data: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="needs a Vision Transformer"):
        train(data, recipe="pretrain", model="linear_8", run=tmp_path / "run")
    few = tmp_path / "few"
    few.mkdir()
    Image.new("RGB", (16, 16)).save(few / "a.png")
    with pytest.raises(DataError, match="at least 4 images"):
        train(few, recipe="pretrain", model=MODEL, run=tmp_path / "run")
    write_folder(tmp_path / "odd" / "val", 6)
    write_folder(tmp_path / "odd" / "test", 6)
    with pytest.raises(DataError, match="no training split"):
        train(tmp_path / "odd", recipe="pretrain", model=MODEL, run=tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()
