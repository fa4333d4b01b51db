"""`vitrail export`: what leaves is what was there, and the proof says so; what is not, does not leave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.contract.colours import COLOURS, exit_code, learn, pixels_of, write_colours
from vitrail import create_model, evaluate, export, load, plug, predict
from vitrail.data.transform import Preprocess
from vitrail.engine.exported import RUNTIMES, exported_file
from vitrail.errors import ExportError, InspectionError, RunError, SpecError
from vitrail.exports import build
from vitrail.exports.build import FORMATS
from vitrail.exports.graph import leaving
from vitrail.exports.images import gather
from vitrail.exports.sensitivity import worst_layers
from vitrail.nn.merge import MergingBlocks
from vitrail.run.open import open_model, open_verified

FORMS = [(form, precision) for form in plug.entries(FORMATS) for precision in plug.load(FORMATS, form).PRECISIONS]
FORMATS_TO_TRY = plug.entries(FORMATS)
QUICK = {"seconds": 0.05}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that tells colours apart, and 60 pictures to prove exports on."""
    folder = tmp_path_factory.mktemp("export")
    write_colours(folder / "data", {"train": 30, "val": 20})
    learn(folder / "data", folder / "run")
    return folder


@pytest.fixture(scope="module")
def best(home: Path) -> dict[str, Any]:
    """All formats and precisions tried on the run."""
    return export(home / "run", best=True, data=home / "data", out=home / "best", **QUICK)


def test_a_format_has_a_runtime_of_its_name() -> None:
    assert plug.entries(FORMATS) == plug.entries(RUNTIMES)
    for form in plug.entries(FORMATS):
        entry = plug.load(FORMATS, form)
        assert callable(entry.write)
        assert set(entry.PRECISIONS) <= {"fp32", "bf16", "int8"}
        assert callable(plug.load(RUNTIMES, form).start)


def test_best_tries_all_and_keeps_the_fastest(home: Path, best: dict[str, Any]) -> None:
    assert {(row["format"], row["precision"]) for row in best["tried"]} == set(FORMS)
    for row in best["tried"]:
        assert not row["refused"]
        assert row["n"] == 60
        assert row["agreement"] >= (1.0 if row["precision"] == "fp32" else 0.98), row
        assert row["max_logit_diff"] < (1e-4 if row["precision"] == "fp32" else 1.0), row
        if (row["format"], row["precision"]) in {("pt2", "bf16"), ("openvino", "int8"), ("onnx", "int8")}:
            assert row["max_logit_diff"] > 1e-4, row  # it is rounded indeed
    assert best["latency_ms"] == min(row["latency_ms"] for row in best["tried"])
    assert best["speedup"] == pytest.approx(best["torch_ms"] / best["latency_ms"])
    kept = json.loads((home / "best" / "proof.json").read_text())
    assert kept == json.loads(json.dumps(best))
    assert Path(best["path"]).is_file()
    assert [each.name for each in home.iterdir() if each.name.startswith(".")] == []  # the others are gone
    wanted = ("format", "precision", "path", "n", "agreement", "max_logit_diff", "top1_before", "top1_after")
    assert {*wanted, "latency_ms", "throughput", "speedup"} <= kept.keys()


def test_an_export_is_a_model_wherever_models_are_taken(home: Path, best: dict[str, Any]) -> None:
    told = {Path(row.path).name: row.prediction for row in predict(home / "run", [home / "data" / "val"])}
    rows = list(predict(home / "best", [home / "data" / "val"], batch_size=7))
    assert len(rows) == 60
    turned = 0
    for row in rows:
        before = told[Path(row.path).name]
        assert row.prediction is not None
        assert before is not None
        assert row.prediction.label == before.label
        assert row.prediction.confidence == pytest.approx(before.confidence, abs=0.05)
        turned += row.prediction.unknown != before.unknown
    assert turned <= 2  # on the very edge of the unknown, if the fastest happens to be in eight bits
    assert best["same_unknown"] == pytest.approx(1 - turned / 60, abs=1.1 / 60)
    assert (
        evaluate(home / "best", home / "data").top1 == evaluate(home / "run", home / "data").top1 == best["top1_after"]
    )
    with pytest.raises(InspectionError, match="exported model gives labels"):
        plug.member("vitrail.verbs.explain", "explain")(home / "best", [home / "data" / "val"], out=home / "pages")
    with pytest.raises(ExportError, match="is an export already"):
        export(home / "best", data=home / "data")


@pytest.mark.parametrize("form", FORMATS_TO_TRY)
def test_a_file_alone_says_what_it_is(home: Path, tmp_path: Path, form: str) -> None:
    proof = export(home / "run", format=form, out=tmp_path / "out", **QUICK)
    assert proof["origin"] == "the run's 8 golden pictures alone"
    assert proof["top1_before"] is None
    assert proof["agreement"] == 1.0
    run = load(home / "run")
    opened = open_model(proof["path"])
    assert opened.labels == run.labels
    assert opened.calibration == run.calibration
    assert Preprocess.parse(opened.preprocess.model_dump()) == run.preprocess
    assert "PyTorch" in (tmp_path / "out" / "README.md").read_text()


def test_confidence_is_inside_the_file(home: Path, tmp_path: Path) -> None:
    import onnxruntime

    proof = export(home / "run", format="onnx", out=tmp_path / "out", **QUICK)
    run, session = load(home / "run"), onnxruntime.InferenceSession(proof["path"])
    pixels = np.stack([pixels_of(name, 7, side=16) for name in COLOURS])
    logits, confidence = session.run(["logits", "confidence"], {"pixels": pixels})
    with torch.inference_mode():
        wanted = run(run.preprocess.normalise(pixels))
    np.testing.assert_allclose(logits, wanted.numpy(), atol=1e-4)
    np.testing.assert_allclose(confidence, run.calibration.probabilities(wanted).numpy(), atol=1e-5)
    text = Path(proof["path"]).read_bytes()
    assert b"/vitrail/" not in text  # no path of this machine
    assert str(Path(build.__file__).parent.parent).encode() not in text


def test_float_input(home: Path, tmp_path: Path) -> None:
    asked = {"takes": "float", "data": home / "data"}
    proof = export(home / "run", format="onnx", **asked, out=tmp_path / "out", **QUICK)
    assert proof["max_logit_diff"] < 1e-4
    assert open_model(tmp_path / "out").facts["takes"] == "float"
    small = export(home / "run", format="openvino", precision="int8", **asked, out=tmp_path / "small", **QUICK)
    assert small["agreement"] >= 0.98


def test_tokens_are_merged(home: Path, tmp_path: Path) -> None:
    proof = export(home / "run", format="openvino", merge=2, data=home / "data", out=tmp_path / "out", **QUICK)
    run, opened = load(home / "run"), open_model(tmp_path / "out")
    run.blocks = MergingBlocks(run.blocks, 2)
    pixels = gather(run, "run", home / "data", limit=9).judged
    with torch.inference_mode():
        merged = run(run.preprocess.normalise(pixels))
        assert torch.allclose(opened(opened.preprocess.normalise(pixels)), merged, atol=1e-4)
    assert proof["max_logit_diff"] > 3e-5  # beside the model as it was
    for model, dynamic in ((run, True), (create_model("resnetv2_50x1_bit"), False)):
        with pytest.raises(ExportError, match="Vision Transformer of one size"):
            leaving(model, merge=2, dynamic=dynamic)


def test_pictures_that_teach_are_not_judged(home: Path, tmp_path: Path) -> None:
    model = load(home / "run")
    parted = gather(model, "run", home / "data", limit=50)
    assert (len(parted.judged), len(parted.calibration)) == (50, 90)  # the train split teaches
    train = gather(model, "run", home / "data" / "train", limit=100, ranges=False)
    assert {each.tobytes() for each in parted.calibration} == {each.tobytes() for each in train.judged}
    assert len(train.calibration) == 0
    both = gather(model, "run", home / "data" / "val", calibration=home / "data" / "val", limit=50)
    assert len(both.judged) + len(both.calibration) == 60  # what is judged does not teach
    few = gather(model, "run", home / "data" / "val", limit=12)
    assert len(few.judged) == 12
    assert set(few.truth.tolist()) == {0, 1, 2}  # drawn from all of them, not the first in order
    alone = gather(model, str(home / "run"), None, calibration=home / "data", limit=50)
    assert (len(alone.judged), len(alone.calibration)) == (8, 90)
    flat = tmp_path / "flat"
    for name in COLOURS:
        (flat / name).mkdir(parents=True)
        for number in range(10):
            Image.fromarray(pixels_of(name, number)).save(flat / name / f"{number}.png")
    halves = gather(model, "run", flat, limit=500)
    assert (len(halves.judged), len(halves.calibration)) == (15, 15)
    both = {each.tobytes() for each in halves.judged} & {each.tobytes() for each in halves.calibration}
    assert not both


@pytest.mark.data
def test_ranges_learned_from_noise_are_refused(deit_tiny: Path, data_dir: Path, tmp_path: Path) -> None:
    noise = tmp_path / "noise" / "a"
    noise.mkdir(parents=True)
    random = np.random.default_rng(0)
    for number in range(32):
        Image.fromarray(random.integers(0, 256, (224, 224, 3), dtype=np.uint8)).save(noise / f"{number}.png")
    with pytest.raises(ExportError, match=r"openvino int8 loses more than 0.5 points[^$]*before[^$]*Worst layers: "):
        export(
            "deit_tiny_patch16_224",
            weights=deit_tiny,
            format="openvino",
            precision="int8",
            data=data_dir / "imagenet" / "imagenet_val_1000_short256.zip",
            calibration=noise.parent,
            limit=100,
            out=tmp_path / "out" / "it",
        )
    assert list((tmp_path / "out").iterdir()) == []


def test_what_loses_too_much_is_refused_and_nothing_is_left(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = build.faith_of
    lost = iter((0.02, 0.04, 0.03))

    def stern(before: Any, after: Any, pictures: Any) -> Any:
        faith = judge(before, after, pictures)
        return type(faith)(**{**faith.__dict__, "top1_after": faith.top1_before - next(lost)})

    monkeypatch.setattr(build, "faith_of", stern)
    monkeypatch.setattr(build, "KEPT", (1, 2, 4))  # four would be more than a quarter of the layers
    with pytest.raises(ExportError, match=r"onnx int8 loses more than 0\.5 points") as refused:
        export(home / "run", format="onnx", precision="int8", data=home / "data", out=tmp_path / "out" / "it", **QUICK)
    assert refused.value.wrong == "onnx int8 loses more than 0.5 points."
    assert "2.00 points on 60 pictures (100.0% before, 98.0% after). Worst layers: " in str(refused.value)
    assert list((tmp_path / "out").iterdir()) == []
    assert next(lost, None) is None  # three attempts


def test_where_far_too_much_is_lost_all_that_may_stay_in_float_does(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, attempts = build.faith_of, []

    def stern(before: Any, after: Any, pictures: Any) -> Any:
        """As if int8 lost ten points whatever is kept."""
        faith = judge(before, after, pictures)
        return type(faith)(**{**faith.__dict__, "top1_after": faith.top1_before - 0.1})

    monkeypatch.setattr(build, "faith_of", stern)
    monkeypatch.setattr(build, "KEPT", (1, 2))
    with pytest.raises(ExportError, match=r"10\.00 points"):
        export(
            home / "run", format="onnx", precision="int8", data=home / "data", out=tmp_path / "out", say=attempts.append
        )
    assert [each for each in attempts if "proving" in each] == [
        *("Writing and proving onnx int8", "Writing and proving onnx int8, 2 layers in float"),
    ]


def test_layers_that_hurt_stay_in_float(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[tuple[str, ...]] = []
    judge = build.faith_of

    def stern(before: Any, after: Any, pictures: Any) -> Any:
        """As if the first two attempts lost a point."""
        faith = judge(before, after, pictures)
        attempts.append(())
        return faith if len(attempts) > 2 else type(faith)(**{**faith.__dict__, "top1_after": faith.top1_before - 0.01})

    monkeypatch.setattr(build, "faith_of", stern)
    monkeypatch.setattr(build, "KEPT", (1, 2))
    asked = {"data": home / "data", "precision": "int8", "out": tmp_path / "out"}
    proof = export(home / "run", format="openvino", **asked, **QUICK)
    model = load(home / "run")
    order = worst_layers(
        model,
        model.preprocess.normalise(gather(model, "run", home / "data", limit=9).calibration[:8]),
    )
    assert proof["kept_in_float"] == order[:2]
    assert len(attempts) == 3
    kept = Path(proof["path"]).read_text(encoding="utf-8").count('type="FakeQuantize"')
    whole = export(home / "run", format="openvino", **{**asked, "out": tmp_path / "whole"}, **QUICK)
    assert kept < Path(whole["path"]).read_text(encoding="utf-8").count('type="FakeQuantize"')


def test_goldens_are_asked_again(home: Path, tmp_path: Path, best: dict[str, Any]) -> None:
    import shutil

    from safetensors.torch import load_file, save_file

    assert open_verified(home / "best").labels
    for source in ("best", "run"):
        copied = shutil.copytree(home / source, tmp_path / source)
        golden = load_file(copied / "golden.safetensors")
        save_file({**golden, "logits": golden["logits"] + 1.0}, copied / "golden.safetensors")
        with pytest.raises(RunError, match="no longer says what it said"):
            open_verified(copied)
        (copied / "golden.safetensors").write_bytes(b"no tensors")
        with pytest.raises(RunError, match="cannot be read"):
            open_verified(copied)
        del golden["chart"]  # as it was before there were charts
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
        (lambda golden: {"pixels": golden["pixels"][..., :1].contiguous()}, "no longer says"),
        (lambda golden: {"logits": golden["logits"][:1]}, "no longer says"),
        (lambda golden: {"chart": golden["chart"][1:]}, "no longer prepares"),
    ],
)
def test_goldens_may_hold_anything(home: Path, tmp_path: Path, change: Any, message: str) -> None:
    import shutil

    from safetensors.torch import load_file, save_file

    copied = shutil.copytree(home / "run", tmp_path / "run")
    golden = load_file(copied / "golden.safetensors")
    changed = {name: tensor.contiguous() for name, tensor in {**golden, **change(golden)}.items()}
    save_file(changed, copied / "golden.safetensors")
    with pytest.raises(RunError, match=message):
        open_verified(copied)


def test_labels_and_thresholds_are_those_of_the_model(home: Path, tmp_path: Path) -> None:
    import shutil

    copied = shutil.copytree(home / "run", tmp_path / "run")
    for labels in (["red"], 3, {"a": 1, "b": 2, "c": 3}):
        (copied / "labels.json").write_text(json.dumps(labels))
        with pytest.raises(RunError, match="do not belong together"):
            open_model(copied)
    shutil.copy(home / "run" / "labels.json", copied)
    (copied / "calibration.json").write_text(json.dumps({"thresholds": [0.5, 0.5], "several": True}))
    with pytest.raises(RunError, match="is not that of its model"):
        open_model(copied)


@pytest.mark.parametrize(
    "change", [{"kernel": "bilinear"}, {"crop": 0.95}, {"resize": "squash"}, {"background": [0, 0, 0]}]
)
def test_another_preparation_of_pictures_is_seen(home: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    import shutil

    import yaml

    copied = shutil.copytree(home / "run", tmp_path / "run")
    config = yaml.safe_load((copied / "config.yaml").read_text(encoding="utf-8"))
    config["preprocess"].update(change)
    (copied / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    with pytest.raises(RunError, match="no longer prepares pictures as it did"):
        open_verified(copied)


def test_an_export_is_replaced_whole_and_nothing_else_is(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(home / "run", format="pt2", out=out, **QUICK)
    export(home / "run", format="openvino", out=out, **QUICK)
    assert sorted(file.name for file in out.iterdir()) == [
        *("README.md", "golden.safetensors", "model.bin", "model.xml", "proof.json"),
    ]
    assert [each.name for each in tmp_path.iterdir()] == ["out"]
    with pytest.raises(ExportError, match="is no export"):
        export(home / "run", format="pt2", out=home / "data", **QUICK)
    assert (home / "data" / "train").is_dir()
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "model.onnx").write_bytes(b"somebody's")
    for place in (theirs, theirs / "model.onnx"):
        with pytest.raises(ExportError, match="is no export"):
            export(home / "run", format="pt2", out=place, **QUICK)
    assert (theirs / "model.onnx").read_bytes() == b"somebody's"


def test_what_was_put_there_meanwhile_is_not_replaced(home: Path, tmp_path: Path) -> None:
    def meanwhile(text: str) -> None:
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out" / "notes.txt").write_text(text)

    with pytest.raises(ExportError, match="is no export"):
        export(home / "run", format="pt2", out=tmp_path / "out", say=meanwhile, **QUICK)
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["notes.txt"]


def test_what_cannot_be_is_told_before_the_work(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExportError, match="int8 learns its ranges from pictures"):
        export(home / "run", format="onnx", precision="int8", out=tmp_path / "out")
    with pytest.raises(ExportError, match="pt2 is not written in int8"):
        export(home / "run", format="pt2", precision="int8", out=tmp_path / "out")
    with pytest.raises(SpecError, match="--best chooses format and precision"):
        export(home / "run", format="pt2", best=True)
    with pytest.raises(SpecError, match="--best chooses format and precision"):
        export(home / "run", precision="int8", best=True)
    monkeypatch.setattr(build, "absent", lambda *_: ("openvino",))
    with pytest.raises(ExportError, match="needs packages that are not installed"):
        export(home / "run", format="openvino")
    assert list(tmp_path.iterdir()) == []
    assert exit_code(["export", str(home / "run"), "--size", "big"]) == 2


@pytest.mark.parametrize("name", [plug.load(RUNTIMES, form).FILE for form in FORMATS_TO_TRY])
def test_a_damaged_file_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"<net>" + bytes(range(256)))
    assert exported_file(tmp_path) == tmp_path / name
    with pytest.raises(ExportError, match="is no model that vitrail export wrote"):
        open_model(tmp_path)


def test_several_exports_in_a_folder_are_asked_about(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    (tmp_path / "model.pt2").touch()
    with pytest.raises(ExportError, match="several exported models"):
        open_model(tmp_path)
