"""The recipe auto with unlabelled images: what it expects, what it tries, and what it keeps."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from sklearn.datasets import load_digits

from tests.contract import forked
from tests.contract.disturbed import KILLED
from tests.contract.forked import bits
from tests.contract.small_images import table_of
from tests.forge import Forge, command
from vitrail.catalogue import create_model
from vitrail.errors import DataError
from vitrail.training.recipe import auto, finetune, scratch
from vitrail.training.recipe.image.model_choice import forecast_epochs
from vitrail.training.recipe.image.pseudo import PseudoLabelled
from vitrail.verbs.train import train

MODEL = "vit_mu_patch4_8"
FAST = ("batch_size=32", "precision=float32", "workers=0", "eval_every=50")
TUNED = ("steps=120", "optimizer=muon", "lr=0.02", "layer_decay=1.0", "augment.flip_rate=0.0")
COLOURS = np.array([[200, 40, 60], [40, 200, 60], [40, 60, 200]])


class Data:
    """Files of images with and without labels, and weights to start from."""

    def __init__(self, folder: Path) -> None:
        digits = load_digits()
        images, labels = (digits.images * 15).astype(np.uint8), digits.target
        self.digits, self.others, self.ten = (folder / f"{name}.npz" for name in ("digits", "others", "ten"))
        train_rows, val_rows = slice(300), slice(1000, 1300)
        _write(self.digits, images, labels, train=train_rows, val=val_rows)
        np.savez(self.others, x=images[300:900], y=np.arange(600) % 10)
        np.savez(self.ten, x=images[300:310], y=np.arange(10))
        rng = np.random.default_rng(0)
        classes = np.arange(90) % 3
        colours = np.clip(COLOURS[classes][:, None, None] + rng.normal(0, 25, (90, 8, 8, 3)), 0, 255).astype(np.uint8)
        self.colours, self.more = folder / "colours.npz", folder / "more.npz"
        _write(self.colours, colours, classes, train=slice(24), val=slice(24, 48))
        np.savez(self.more, x=colours[48:], y=np.zeros(42, dtype=np.int64))
        self.weights = folder / "weights"
        train("digits", model=MODEL, recipe="scratch", run=self.weights, settings=[*FAST, "steps=40"], report=False)


def _write(path: Path, images: Any, labels: Any, **splits: slice) -> None:
    np.savez(
        path,
        **{f"x_{name}": images[rows] for name, rows in splits.items()},
        **{f"y_{name}": labels[rows] for name, rows in splits.items()},
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return Data(tmp_path_factory.mktemp("data"))


def story_of(run: Path) -> str:
    return " ".join(json.loads((run / "result.json").read_text())["story"])


def student_words(data: Data, run: Path) -> list[str]:
    words = ["train", str(data.digits), "--unlabelled", str(data.others), "--weights", str(data.weights)]
    return [*words, "--run", str(run), *FAST, *TUNED]


@pytest.fixture(scope="module")
def student(data: Data, tmp_path_factory: pytest.TempPathFactory, forge: Forge) -> Path:
    folder = tmp_path_factory.mktemp("student")
    code = forge.run(command, student_words(data, folder / "run"), log=folder / "log")
    assert code == 0, (folder / "log").read_text()
    return folder / "run"


def test_a_student_is_expected_tried_and_kept(student: Path) -> None:
    story = story_of(student)
    assert "Expected from fine-tuning: about 12.8 epochs of 300 labelled images." in story
    assert "From a noisy student: about " in story
    assert "of 600 images labelled with a confidence of 70 % or more" in story
    assert " % of them expected to be right" in story
    assert "At least 2 epochs are possible, so the student is tried." in story
    assert "Training a student was better: " in story
    assert (student / "stages" / "student-1" / "metrics.jsonl").is_file()
    decision = yaml.safe_load((student / "config.yaml").read_text())["decisions"]["student"]
    assert decision["taken"]
    assert all(note in story for note in decision["notes"])


def test_a_student_is_killed_and_resumed(student: Path, data: Data, tmp_path: Path, forge: Forge) -> None:
    killed = tmp_path / "killed"
    words = student_words(data, killed)
    kill = partial(forked.kill_in, "vitrail.training.loop", "compute_gradients", 70)
    assert forge.run(command, words, kill, log=tmp_path / "log") == KILLED
    assert (killed / "stages" / "student-1" / "checkpoints" / "latest").is_file()
    assert forge.run(command, words, log=tmp_path / "log") == 0, (tmp_path / "log").read_text()
    assert bits(killed) == bits(student)


@pytest.fixture(scope="module")
def tuned(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of auto without unlabelled images."""
    run = tmp_path_factory.mktemp("tuned") / "run"
    train(data.digits, weights=data.weights, run=run, settings=[*FAST, "steps=3"], report=False)
    return run


@pytest.mark.parametrize(
    ("unlabelled", "expected"),
    [
        ("others", "Fewer than 2 epochs are possible, so the labelled images are used alone."),
        ("ten", "too few to learn from beside 300 labelled images, so those are used alone."),
    ],
)
def test_without_a_student_nothing_changes(
    unlabelled: str, expected: str, tuned: Path, data: Data, tmp_path: Path
) -> None:
    run, more = tmp_path / "run", getattr(data, unlabelled)
    settings = [*FAST, "steps=3"]
    result = train(data.digits, weights=data.weights, unlabelled=more, run=run, settings=settings, report=False)
    assert expected in " ".join(result.story)
    assert result.story[-1] == json.loads((tuned / "result.json").read_text())["story"][-1]
    assert (run / "model.safetensors").read_bytes() == (tuned / "model.safetensors").read_bytes()
    assert not (run / "stages").exists()


@pytest.mark.parametrize(
    ("words", "left", "epochs"),
    [
        (["minutes=1"], 12.0, 6.0),
        (["epochs=7.5"], None, 7.5),
        (["steps=30"], None, 6.0),
        (["batch_size=512"], 3.0, 1.5),
    ],
)
def test_epochs_are_forecast(words: list[str], left: float | None, epochs: float) -> None:
    task: Any = SimpleNamespace(
        settings=scratch.Spec().override_words(["batch_size=20", *words]),
        splits=SimpleNamespace(train=range(100)),
        seconds_left=lambda: left,
        measure_speed=lambda _: 50.0,
    )
    assert forecast_epochs(task, create_model(MODEL)) == epochs


@pytest.mark.parametrize(
    ("epochs", "minutes", "can_choose", "taken", "words"),
    [
        (0.4, 10.0, True, False, "Fewer than 2 epochs are possible"),
        (0.8, 10.0, True, True, "At least 2 epochs are possible on smaller images"),
        (0.8, 10.0, False, False, "Fewer than 2 epochs are possible"),
        (0.8, None, True, False, "Fewer than 2 epochs are possible"),
        (2.0, 10.0, True, True, "At least 2 epochs are possible, so"),
    ],
)
def test_the_student_needs_two_epochs(
    epochs: float, minutes: float | None, can_choose: bool, taken: bool, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of images that may be smaller, if the length is in minutes and the user did not choose the model."""
    monkeypatch.setattr(auto, "forecast_epochs", lambda *_: epochs)
    stage: Any = SimpleNamespace(kind=SimpleNamespace(new_model=lambda _: None))
    task: Any = SimpleNamespace(
        splits=SimpleNamespace(train=table_of([0] * 4)),
        settings=SimpleNamespace(minutes=minutes),
        can_choose_model=can_choose,
        kind=SimpleNamespace(NOUN="images"),
    )
    decision = auto.weigh_student(task, stage, PseudoLabelled(table_of([0] * 4), "4 of 9"))
    assert decision["taken"] == taken
    assert words in decision["notes"][1]
    alone = 2 * epochs if minutes else epochs
    assert f"about {alone:.1f} epochs of 4 labelled images" in decision["notes"][0]
    assert not auto.weigh_student(task, stage, None)["taken"]


def colour_words(data: Data, run: Path, steps: int, *more: str) -> list[str]:
    words = ["train", str(data.colours), "--model", MODEL, "--run", str(run), *FAST]
    return [*words, "batch_size=12", f"steps={steps}", *more]


@pytest.fixture(scope="module")
def from_scratch(data: Data, tmp_path_factory: pytest.TempPathFactory, forge: Forge) -> Path:
    folder = tmp_path_factory.mktemp("scratch")
    words = colour_words(data, folder / "run", 100, "--unlabelled", str(data.more))
    assert forge.run(command, words, log=folder / "log") == 0, (folder / "log").read_text()
    return folder / "run"


def test_without_weights_a_teacher_and_a_student(from_scratch: Path) -> None:
    story = story_of(from_scratch)
    assert "The run is long enough for about 50.0 epochs of 24 labelled images, 50 or more, so Noisy Student" in story
    assert "Teacher: " in story
    assert "of 42 images labelled with a confidence of 70 % or more" in story
    assert "kept" in story
    assert (from_scratch / "stages" / "student-1" / "metrics.jsonl").is_file()


def test_without_weights_killed_and_resumed(from_scratch: Path, data: Data, tmp_path: Path, forge: Forge) -> None:
    killed = tmp_path / "killed"
    words = colour_words(data, killed, 100, "--unlabelled", str(data.more))
    kill = partial(forked.kill_in, "vitrail.training.loop", "compute_gradients", 160)
    assert forge.run(command, words, kill, log=tmp_path / "log") == KILLED
    assert forge.run(command, words, log=tmp_path / "log") == 0, (tmp_path / "log").read_text()
    assert bits(killed) == bits(from_scratch)


def test_too_short_for_a_teacher(data: Data, tmp_path: Path, forge: Forge) -> None:
    """The same model as without unlabelled images, which is that of the recipe scratch; and it says so."""
    more = {"with": ["--unlabelled", str(data.more)], "without": [], "scratch": ["--recipe", "scratch"]}
    for name, each in more.items():
        code = forge.run(command, colour_words(data, tmp_path / name, 10, *each), log=tmp_path / "log")
        assert code == 0, (tmp_path / "log").read_text()
    assert "A teacher and a student need 50, so the labelled images are used alone." in story_of(tmp_path / "with")
    assert len({(tmp_path / name / "model.safetensors").read_bytes() for name in more}) == 1
    assert story_of(tmp_path / "without") == story_of(tmp_path / "scratch")
    config = yaml.safe_load((tmp_path / "without" / "config.yaml").read_text())
    assert not config["decisions"].keys() & {"student", "labelled_epochs"}
    assert "unlabelled" not in config["request"]


def test_auto_has_no_settings_of_its_own() -> None:
    """So that runs of earlier versions resume."""
    for has_weights, other in ((True, finetune), (False, scratch)):
        assert auto.spec(has_weights=has_weights).model_fields.keys() == other.Spec.model_fields.keys()


def test_unlabelled_images_are_refused_before_anything_starts(data: Data, tmp_path: Path) -> None:
    options: dict[str, Any] = {"unlabelled": data.others, "model": MODEL, "run": tmp_path / "run"}
    with pytest.raises(DataError, match=r"uses no unlabelled images[\s\S]*--recipe auto or noisy_student"):
        train(data.digits, recipe="finetune", weights=data.weights, **options)
    with pytest.raises(DataError, match=r"one label per image[\s\S]*numbers to predict"):
        train(data.digits, target="label", **options)
    table = tmp_path / "table.csv"
    table.write_text("path,labels\n" + "\n".join(f"{number}.png,a;b" for number in range(4)))
    with pytest.raises(DataError, match=r"one label per image[\s\S]*multi-label"):
        train(table, **options)
    assert not (tmp_path / "run").exists()
