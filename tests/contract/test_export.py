"""`vitrail export`: an export matches its model and the proof shows it; one that does not is rejected."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from tests.conftest import copy_unsummed
from tests.contract.colours import COLOURS, exit_code, learn, pixels_of, write_colours
from vitrail import create_model, evaluate, export, figures, load, plug, predict
from vitrail.data.transform import Preprocess
from vitrail.engine.exported import RUNTIMES, find_exported_file
from vitrail.errors import ExportError, InspectionError, RunError, SpecError
from vitrail.exports import build, search, sensitivity
from vitrail.exports.build import FORMATS
from vitrail.exports.graph import prepare_for_export
from vitrail.exports.images import load_images
from vitrail.exports.sensitivity import rank_layers
from vitrail.nn.merge import MergingBlocks
from vitrail.run.open import open_model, open_verified

FORMS = [(form, precision) for form in plug.entries(FORMATS) for precision in plug.load(FORMATS, form).PRECISIONS]
FORMATS_TO_TRY = plug.entries(FORMATS)
QUICK = {"seconds": 0.05}
UNLIMITED = {**QUICK, "minutes": float("inf")}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that classifies colours, and 60 images to prove exports on."""
    folder = tmp_path_factory.mktemp("export")
    write_colours(folder / "data", {"train": 30, "val": 20})
    learn(folder / "data", folder / "run")
    return folder


@pytest.fixture(scope="module")
def best(home: Path) -> dict[str, Any]:
    """All formats and precisions tried on the run."""
    return export(home / "run", best=True, data=home / "data", out=home / "best", **UNLIMITED)


def test_every_format_has_a_runtime_of_the_same_name() -> None:
    assert plug.entries(FORMATS) == plug.entries(RUNTIMES)
    for form in plug.entries(FORMATS):
        entry = plug.load(FORMATS, form)
        assert callable(entry.write)
        assert set(entry.PRECISIONS) <= {"fp32", "bf16", "int8"}
        assert callable(plug.load(RUNTIMES, form).start)


def test_best_tries_everything_and_keeps_the_fastest(home: Path, best: dict[str, Any]) -> None:
    assert {(row["format"], row["precision"]) for row in best["tried"]} == set(FORMS)
    for row in best["tried"]:
        assert not row["refused"]
        assert row["n"] == 60
        assert row["agreement"] >= (1.0 if row["precision"] == "fp32" else 0.98), row
        assert row["max_logit_diff"] < (1e-4 if row["precision"] == "fp32" else 1.0), row
        if (row["format"], row["precision"]) in {("pt2", "bf16"), ("openvino", "int8"), ("onnx", "int8")}:
            assert row["max_logit_diff"] > 1e-4, row  # it is really rounded
    assert best["latency_ms"] == min(row["latency_ms"] for row in best["tried"])
    assert best["speedup"] == pytest.approx(best["torch_ms"] / best["latency_ms"])
    saved = json.loads((home / "best" / "proof.json").read_text())
    assert saved == json.loads(json.dumps(best))
    assert Path(best["path"]).is_file()
    assert [each.name for each in home.iterdir() if each.name.startswith(".")] == []  # nothing else is left behind
    keys = ("format", "precision", "path", "n", "agreement", "max_logit_diff", "top1_before", "top1_after")
    assert {*keys, "latency_ms", "throughput", "speedup"} <= saved.keys()


def test_an_export_works_wherever_a_model_does(home: Path, best: dict[str, Any]) -> None:
    predictions = {Path(row.path).name: row.prediction for row in predict(home / "run", [home / "data" / "val"])}
    rows = list(predict(home / "best", [home / "data" / "val"], batch_size=7))
    assert len(rows) == 60
    changed = 0
    for row in rows:
        before = predictions[Path(row.path).name]
        assert row.prediction is not None
        assert before is not None
        assert row.prediction.label == before.label
        assert row.prediction.confidence == pytest.approx(before.confidence, abs=0.05)
        changed += row.prediction.unknown != before.unknown
    assert changed <= 2  # images on the edge of unknown, if the fastest happens to be int8
    assert best["same_unknown"] == pytest.approx(1 - changed / 60, abs=1.1 / 60)
    assert (
        evaluate(home / "best", home / "data").top1 == evaluate(home / "run", home / "data").top1 == best["top1_after"]
    )
    with pytest.raises(InspectionError, match="exported model returns predictions only"):
        plug.import_from("vitrail.verbs.explain", "explain")(home / "best", [home / "data" / "val"], out=home / "pages")
    with pytest.raises(InspectionError, match="exported model returns predictions only"):
        figures(home / "best", out=home / "pages")
    with pytest.raises(ExportError, match="is already an export"):
        export(home / "best", data=home / "data")


@pytest.mark.parametrize("form", FORMATS_TO_TRY)
def test_a_file_alone_has_labels_and_preprocessing(home: Path, tmp_path: Path, form: str) -> None:
    proof = export(home / "run", format=form, out=tmp_path / "out", **QUICK)
    assert proof["origin"] == "the run's 8 golden images only"
    assert proof["top1_before"] is None
    assert proof["agreement"] == 1.0
    run = load(home / "run")
    opened = open_model(proof["path"])
    assert opened.labels == run.labels
    assert opened.calibration == run.calibration
    assert Preprocess.parse(opened.preprocess.model_dump()) == run.preprocess
    assert "PyTorch" in (tmp_path / "out" / "README.md").read_text()


def test_confidence_is_part_of_the_file(home: Path, tmp_path: Path) -> None:
    import onnxruntime

    proof = export(home / "run", format="onnx", out=tmp_path / "out", **QUICK)
    run, session = load(home / "run"), onnxruntime.InferenceSession(proof["path"])
    pixels = np.stack([pixels_of(name, 7, side=16) for name in COLOURS])
    logits, confidence = session.run(["logits", "confidence"], {"pixels": pixels})
    with torch.inference_mode():
        expected = run(run.preprocess.normalise(pixels))
    np.testing.assert_allclose(logits, expected.numpy(), atol=1e-4)
    np.testing.assert_allclose(confidence, run.calibration.probabilities(expected).numpy(), atol=1e-5)
    text = Path(proof["path"]).read_bytes()
    assert b"/vitrail/" not in text  # no path of this machine
    assert str(Path(build.__file__).parent.parent).encode() not in text


def test_float_input(home: Path, tmp_path: Path) -> None:
    options = {"input_dtype": "float", "data": home / "data"}
    proof = export(home / "run", format="onnx", **options, out=tmp_path / "out", **QUICK)
    assert proof["max_logit_diff"] < 1e-4
    assert open_model(tmp_path / "out").facts["takes"] == "float"
    int8 = export(home / "run", format="openvino", precision="int8", **options, out=tmp_path / "int8", **QUICK)
    assert int8["agreement"] >= 0.98


def test_tokens_are_merged(home: Path, tmp_path: Path) -> None:
    proof = export(home / "run", format="openvino", merge=2, data=home / "data", out=tmp_path / "out", **QUICK)
    run, opened = load(home / "run"), open_model(tmp_path / "out")
    run.blocks = MergingBlocks(run.blocks, 2)
    pixels = load_images(run, "run", home / "data", limit=9).proof_pixels
    with torch.inference_mode():
        merged = run(run.preprocess.normalise(pixels))
        assert torch.allclose(opened(opened.preprocess.normalise(pixels)), merged, atol=1e-4)
    assert proof["max_logit_diff"] > 3e-5  # from the unmerged model
    for model, dynamic in ((run, True), (create_model("resnetv2_50x1_bit"), False)):
        with pytest.raises(ExportError, match="Vision Transformers of a fixed image size"):
            prepare_for_export(model, merge=2, dynamic=dynamic)


def test_calibration_images_are_not_used_for_the_proof(home: Path, tmp_path: Path) -> None:
    model = load(home / "run")
    images = load_images(model, "run", home / "data", limit=50)
    assert (len(images.proof_pixels), len(images.calibration_pixels)) == (50, 90)  # calibrates on the train split
    train = load_images(model, "run", home / "data" / "train", limit=100, calibrate=False)
    assert {each.tobytes() for each in images.calibration_pixels} == {each.tobytes() for each in train.proof_pixels}
    assert len(train.calibration_pixels) == 0
    both = load_images(model, "run", home / "data" / "val", calibration=home / "data" / "val", limit=50)
    assert len(both.proof_pixels) + len(both.calibration_pixels) == 60  # proof images do not calibrate
    few = load_images(model, "run", home / "data" / "val", limit=12)
    assert len(few.proof_pixels) == 12
    assert set(few.labels.tolist()) == {0, 1, 2}  # sampled from all of them, not the first in order
    alone = load_images(model, str(home / "run"), None, calibration=home / "data", limit=50)
    assert (len(alone.proof_pixels), len(alone.calibration_pixels)) == (8, 90)
    flat = tmp_path / "flat"
    for name in COLOURS:
        (flat / name).mkdir(parents=True)
        for number in range(10):
            Image.fromarray(pixels_of(name, number)).save(flat / name / f"{number}.png")
    halves = load_images(model, "run", flat, limit=500)
    assert (len(halves.proof_pixels), len(halves.calibration_pixels)) == (15, 15)
    both = {each.tobytes() for each in halves.proof_pixels} & {each.tobytes() for each in halves.calibration_pixels}
    assert not both


@pytest.mark.data
def test_int8_calibrated_on_noise_is_rejected(
    deit_tiny: Path, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "NUM_FLOAT_LAYERS", (2,))  # one more attempt, not four
    monkeypatch.setattr(sensitivity, "NUM_IMAGES", 1)
    noise = tmp_path / "noise" / "a"
    noise.mkdir(parents=True)
    random = np.random.default_rng(0)
    for number in range(8):
        Image.fromarray(random.integers(0, 256, (224, 224, 3), dtype=np.uint8)).save(noise / f"{number}.png")
    with pytest.raises(
        ExportError, match=r"openvino int8 loses more than 0.5 points[^$]*before[^$]*Most sensitive layers: "
    ):
        export(
            "deit_tiny_patch16_224",
            weights=deit_tiny,
            format="openvino",
            precision="int8",
            data=data_dir / "imagenet" / "imagenet_val_1000_short256.zip",
            calibration=noise.parent,
            limit=40,
            out=tmp_path / "out" / "it",
        )
    assert list((tmp_path / "out").iterdir()) == []


def test_an_export_that_loses_too_much_is_rejected_and_leaves_no_files(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = build.measure_fidelity
    lost = iter((0.02, 0.04, 0.03))

    def lossy(before: Any, after: Any, images: Any) -> Any:
        fidelity = measure(before, after, images)
        return replace(fidelity, top1_after=fidelity.top1_before - next(lost))

    monkeypatch.setattr(build, "measure_fidelity", lossy)
    monkeypatch.setattr(search, "NUM_FLOAT_LAYERS", (1, 2, 4))  # four would be more than a quarter of the layers
    with pytest.raises(ExportError, match=r"onnx int8 loses more than 0\.5 points") as rejected:
        export(home / "run", format="onnx", precision="int8", data=home / "data", out=tmp_path / "out" / "it", **QUICK)
    assert rejected.value.wrong == "onnx int8 loses more than 0.5 points."
    assert "2.00 points on 60 images (100.0 % before, 98.0 % after). Most sensitive layers: " in str(rejected.value)
    assert list((tmp_path / "out").iterdir()) == []
    assert next(lost, None) is None  # three attempts


def test_after_a_large_drop_the_most_layers_allowed_stay_in_float(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure, messages = build.measure_fidelity, []

    def lossy(before: Any, after: Any, images: Any) -> Any:
        """As if int8 lost ten points whatever stays in float."""
        fidelity = measure(before, after, images)
        return replace(fidelity, top1_after=fidelity.top1_before - 0.1)

    monkeypatch.setattr(build, "measure_fidelity", lossy)
    monkeypatch.setattr(search, "NUM_FLOAT_LAYERS", (1, 2))
    with pytest.raises(ExportError, match=r"10\.00 points"):
        export(
            home / "run", format="onnx", precision="int8", data=home / "data", out=tmp_path / "out", log=messages.append
        )
    assert [each for each in messages if each.startswith("Building")] == [
        *("Building onnx int8", "Building onnx int8 with 2 layers in float"),
    ]


def test_the_most_sensitive_layers_stay_in_float(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[tuple[str, ...]] = []
    measure = build.measure_fidelity

    def lossy(before: Any, after: Any, images: Any) -> Any:
        """As if the first two attempts lost a point."""
        fidelity = measure(before, after, images)
        attempts.append(())
        return fidelity if len(attempts) > 2 else replace(fidelity, top1_after=fidelity.top1_before - 0.01)

    monkeypatch.setattr(build, "measure_fidelity", lossy)
    monkeypatch.setattr(search, "NUM_FLOAT_LAYERS", (1, 2))
    options = {"data": home / "data", "precision": "int8", "out": tmp_path / "out"}
    proof = export(home / "run", format="openvino", **options, **QUICK)
    model = load(home / "run")
    order = rank_layers(
        model,
        model.preprocess.normalise(load_images(model, "run", home / "data", limit=9).calibration_pixels[:8]),
    )
    assert proof["kept_in_float"] == order[:2]
    assert len(attempts) == 3
    quantized = Path(proof["path"]).read_text(encoding="utf-8").count('type="FakeQuantize"')
    whole = export(home / "run", format="openvino", **{**options, "out": tmp_path / "whole"}, **QUICK)
    assert quantized < Path(whole["path"]).read_text(encoding="utf-8").count('type="FakeQuantize"')


def test_golden_samples_are_replayed(home: Path, tmp_path: Path, best: dict[str, Any]) -> None:
    assert open_verified(home / "best").labels
    for source in ("best", "run"):
        copied = copy_unsummed(home / source, tmp_path / source)
        golden = load_file(copied / "golden.safetensors")
        save_file({**golden, "logits": golden["logits"] + 1.0}, copied / "golden.safetensors")
        with pytest.raises(RunError, match="no longer gives the outputs it was saved with"):
            open_verified(copied)
        (copied / "golden.safetensors").write_bytes(b"no tensors")
        with pytest.raises(RunError, match="cannot be read"):
            open_verified(copied)
        del golden["chart"]  # as older versions wrote it
        save_file(golden, copied / "golden.safetensors")
        assert open_verified(copied).labels


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda golden: {"pixels": golden["pixels"][..., 0]}, "cannot be read"),
        (lambda golden: {"pixels": golden["pixels"][:0]}, "cannot be read"),
        (lambda golden: {"pixels": golden["pixels"].float()}, "cannot be read"),
        (lambda golden: {"chart": golden["chart"].bfloat16()}, "cannot be read"),
        (lambda golden: {"logits": golden["logits"][0]}, "cannot be read"),
        (lambda golden: {"logits": golden["logits"] > 0}, "cannot be read"),
        (lambda golden: {"pixels": golden["pixels"][..., :1].contiguous()}, "no longer gives"),
        (lambda golden: {"logits": golden["logits"][:1]}, "cannot be read"),
        (lambda golden: {"chart": golden["chart"][1:]}, "no longer preprocesses"),
    ],
)
def test_any_golden_file_is_handled(home: Path, tmp_path: Path, change: Any, message: str) -> None:
    copied = copy_unsummed(home / "run", tmp_path / "run")
    golden = load_file(copied / "golden.safetensors")
    changed = {name: tensor.contiguous() for name, tensor in {**golden, **change(golden)}.items()}
    save_file(changed, copied / "golden.safetensors")
    with pytest.raises(RunError, match=message):
        open_verified(copied)


def test_labels_and_thresholds_must_fit_the_model(home: Path, tmp_path: Path) -> None:
    copied = copy_unsummed(home / "run", tmp_path / "run")
    for labels in (["red"], 3, {"a": 1, "b": 2, "c": 3}):
        (copied / "labels.json").write_text(json.dumps(labels))
        with pytest.raises(RunError, match=r"labels\.json is damaged"):
            open_model(copied)
    shutil.copy(home / "run" / "labels.json", copied)
    (copied / "calibration.json").write_text(json.dumps({"thresholds": [0.5, 0.5], "several": True}))
    with pytest.raises(RunError, match="does not fit its model"):
        open_model(copied)


@pytest.mark.parametrize(
    "change", [{"kernel": "bilinear"}, {"crop": 0.95}, {"resize": "squash"}, {"background": [0, 0, 0]}]
)
def test_changed_preprocessing_is_detected(home: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    import yaml

    copied = copy_unsummed(home / "run", tmp_path / "run")
    config = yaml.safe_load((copied / "config.yaml").read_text(encoding="utf-8"))
    config["prepare"].update(change)
    (copied / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    with pytest.raises(RunError, match="no longer preprocesses images as it did"):
        open_verified(copied)


def test_only_an_export_is_replaced_and_as_a_whole(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(home / "run", format="pt2", out=out, **QUICK)
    export(home / "run", format="openvino", out=out, **QUICK)
    assert sorted(file.name for file in out.iterdir()) == [
        *("README.md", "SHA256SUMS", "golden.safetensors", "model.bin", "model.xml", "proof.json"),
    ]
    assert [each.name for each in tmp_path.iterdir()] == ["out"]
    with pytest.raises(ExportError, match="is not an export"):
        export(home / "run", format="pt2", out=home / "data", **QUICK)
    assert (home / "data" / "train").is_dir()
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "model.onnx").write_bytes(b"somebody's")
    for place in (theirs, theirs / "model.onnx"):
        with pytest.raises(ExportError, match="is not an export"):
            export(home / "run", format="pt2", out=place, **QUICK)
    assert (theirs / "model.onnx").read_bytes() == b"somebody's"


def test_files_that_appear_during_the_export_are_not_replaced(home: Path, tmp_path: Path) -> None:
    def meanwhile(text: str) -> None:
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out" / "notes.txt").write_text(text)

    with pytest.raises(ExportError, match="is not an export"):
        export(home / "run", format="pt2", out=tmp_path / "out", log=meanwhile, **QUICK)
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["notes.txt"]


def test_impossible_requests_fail_before_any_work(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExportError, match="int8 needs at least 8 images to calibrate on"):
        export(home / "run", format="onnx", precision="int8", out=tmp_path / "out")
    with pytest.raises(ExportError, match="pt2 does not support int8"):
        export(home / "run", format="pt2", precision="int8", out=tmp_path / "out")
    with pytest.raises(SpecError, match="--best chooses format and precision"):
        export(home / "run", format="pt2", best=True)
    with pytest.raises(SpecError, match="--best chooses format and precision"):
        export(home / "run", precision="int8", best=True)
    monkeypatch.setattr(build, "missing_packages", lambda *_: ("openvino",))
    with pytest.raises(ExportError, match="needs packages that are not installed"):
        export(home / "run", format="openvino")
    assert list(tmp_path.iterdir()) == []
    assert exit_code(["export", str(home / "run"), "--size", "big"]) == 2


@pytest.mark.parametrize("name", [plug.load(RUNTIMES, form).FILE for form in FORMATS_TO_TRY])
def test_a_damaged_file_is_rejected(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"<net>" + bytes(range(256)))
    assert find_exported_file(tmp_path) == tmp_path / name
    with pytest.raises(ExportError, match="is not a model written by vitrail export"):
        open_model(tmp_path)


def test_more_than_one_export_in_a_folder_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    (tmp_path / "model.pt2").touch()
    with pytest.raises(ExportError, match="more than one exported model"):
        open_model(tmp_path)
