"""Every damaged file of a run: one message that names it, exit code 2, in every verb that opens a run."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

import vitrail
from tests.hostile.run_files import CALIBRATION, CASES, CONFIG, GOLDEN, LABELS, without_sums
from vitrail import __main__ as command_line
from vitrail.errors import RunError, VitrailError
from vitrail.run import checkpoint
from vitrail.run.open import open_verified
from vitrail.sums import SUMS
from vitrail.training.run_progress import RunProgress
from vitrail.verbs.explain import explain
from vitrail.verbs.export import export
from vitrail.verbs.figures import figures
from vitrail.verbs.train import train

TRAIN = {
    "recipe": "scratch",
    "model": "vit_mu_patch4_8",
    "settings": ("steps=4", "eval_every=2", "batch_size=32", "precision=float32", "cache_gb=0.0", "workers=0"),
}
NESTED = "[" * 100_000


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on the digits."""
    folder = tmp_path_factory.mktemp("finished")
    digits = load_digits()
    images, labels = (digits.images[:200] * 15).astype(np.uint8), digits.target[:200]
    np.savez(
        folder / "digits.npz", x_train=images[:160], y_train=labels[:160], x_test=images[160:], y_test=labels[160:]
    )
    train(folder / "digits.npz", run=folder / "run", report=False, **TRAIN)
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of it to damage."""
    return Path(shutil.copytree(finished, tmp_path, dirs_exist_ok=True)) / "run"


def ends(words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """Run the command line in this process; return its exit code and what it printed."""
    monkeypatch.setattr(sys, "argv", ["vitrail", *words])
    with pytest.raises(SystemExit) as stop:
        command_line.main()
    output = capsys.readouterr()
    return int(stop.value.code or 0), output.out + output.err


def openings(run: Path) -> dict[str, Callable[[], object]]:
    """Every verb that opens a run; serve does it by `open_verified`, in its worker."""
    image, out = run.parent / "image.png", run.parent / "out"
    Image.fromarray(np.zeros((8, 8, 3), dtype=np.uint8)).save(image)
    return {
        "predict": lambda: list(vitrail.predict(run, [image])),
        "evaluate": lambda: vitrail.evaluate(run, run.parent / "digits.npz"),
        "explain": lambda: explain(run, [str(image)], out=out),
        "export": lambda: export(run, out=out),
        "figures": lambda: figures(run, out=out),
        "serve": lambda: open_verified(run),
        "train": lambda: vitrail.train(
            run.parent / "digits.npz", weights=run, recipe="probe", run=out, settings=("cache_gb=0.0",)
        ),
    }


@pytest.mark.parametrize("name", CASES)
def test_every_verb_refuses(name: str, run: Path) -> None:
    damage, file = CASES[name]
    damage(without_sums(run))
    for verb, start in openings(run).items():
        if verb == "train" and (file in (LABELS, CALIBRATION) or name.startswith("preprocessing_of")):
            continue  # weights to start from have no use for them
        with pytest.raises(VitrailError, match=file) as refused:
            start()
        message = str(refused.value)
        assert len(message) < 700, verb
        assert refused.value.__suppress_context__ or refused.value.__context__ is None, verb
    assert not (run.parent / "out").exists() or not any((run.parent / "out").iterdir())


@pytest.mark.parametrize("name", ["billion_laughs", "val_a_number", "labels_of_nulls", "tiny_temperature"])
def test_exit_code(name: str, run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    damage, file = CASES[name]
    damage(without_sums(run))
    openings(run)
    code, output = ends(["predict", str(run), str(run.parent / "image.png")], capsys, monkeypatch)
    assert code == 2
    assert re.search(rf"RunError: \S+{file} .*\n  Got .+\n  Try .+", output)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_samples(name: str, run: Path) -> None:
    GOLDEN[name](without_sums(run))
    with pytest.raises(RunError, match=r"golden"):
        open_verified(run)


def test_a_changed_file_is_noticed_and_can_be_accepted(run: Path) -> None:
    """By hand or by a failing disk: another sum is refused, with the line to delete."""
    labels = run / LABELS
    labels.write_text(labels.read_text().replace('"3"', '"three"'))
    with pytest.raises(
        RunError, match=r"labels.json is not the file that was written(.|\n)*delete its line from \S*SUMS"
    ):
        vitrail.load(run)
    sums = (run / SUMS).read_text().splitlines(keepends=True)
    (run / SUMS).write_text("".join(line for line in sums if "labels.json" not in line))
    assert vitrail.load(run).labels[3] == "three"
    config = run / CONFIG
    config.write_text(config.read_text().replace("crop: 0.9", "crop: 1.0"))
    with pytest.raises(RunError, match=r"config.yaml is not the file that was written(.|\n)*delete its last line"):
        vitrail.load(run)
    config.write_text(config.read_text().rpartition("# SHA-256")[0])
    assert vitrail.load(run).preprocess.crop == 1.0


def test_a_missing_calibration_is_noticed(run: Path) -> None:
    (run / "calibration.json").unlink()
    with pytest.raises(RunError, match=r"calibration.json is not the file that was written(.|\n)*no such file"):
        vitrail.load(run)
    (run / SUMS).unlink()
    assert vitrail.load(run).calibration.n == 0


def test_sums_can_be_checked_by_others(run: Path) -> None:
    listed = dict(reversed(line.split("  ")) for line in (run / SUMS).read_text().splitlines())
    assert {
        "model.safetensors",
        "labels.json",
        "calibration.json",
        "golden.safetensors",
        "result.json",
    } <= listed.keys()
    for name, digest in listed.items():
        assert hashlib.sha256((run / name).read_bytes()).hexdigest() == digest
    (run / SUMS).write_bytes(b"\xff" + (run / SUMS).read_bytes())
    with pytest.raises(RunError, match="SHA256SUMS is damaged"):
        vitrail.load(run)


STATES = {
    "a list": lambda _: [],
    "a foreign key": lambda state: {**state, "surprise": 1},
    "a text as step": lambda state: {**state, "step": "4"},
    "nested deep": lambda _: NESTED,
    "a negative length": lambda state: {**state, "metrics_bytes": -1},
    "a guard of text": lambda state: {**state, "guard": {"recent": ["x"]}},
    "a best of two": lambda state: {**state, "best": [0.5, 1]},
}


def forge_state(path: Path, state: object) -> None:
    """Replace the state of a checkpoint, with the right sum."""
    (path / "state.json").write_text(state if state is NESTED else json.dumps(state))
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["state.json"] = hashlib.sha256((path / "state.json").read_bytes()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("name", STATES)
def test_a_state_that_does_not_fit_counts_as_damaged(name: str, run: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Although its sums are right: the checkpoint before it is taken, as for wrong sums."""
    newest = run / "checkpoints" / "step-000000004"
    state = STATES[name](json.loads((newest / "state.json").read_text()))
    forge_state(newest, state)
    accept = lambda found: RunProgress.from_state(found.state)  # noqa: E731 - as training does
    name, found = checkpoint.newest(run / "checkpoints", check=accept)
    assert (name, found.state["step"]) == ("step-000000002", 2)
    assert f"{newest} is damaged and skipped" in caplog.text


def test_training_resumes_from_the_checkpoint_before(
    run: Path, finished: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (run / "result.json").unlink()
    newest, before = run / "checkpoints" / "step-000000004", (run / "model.safetensors").read_bytes()
    forge_state(newest, {**json.loads((newest / "state.json").read_text()), "surprise": 1})
    assert train(finished / "digits.npz", run=run, report=False, **TRAIN).steps == 4
    assert f"{newest} is damaged and skipped" in caplog.text
    assert (run / "model.safetensors").read_bytes() == before
