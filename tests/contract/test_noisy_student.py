"""Noisy Student: a teacher labels images without labels, and a student learns from both."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.contract import forked
from tests.contract.disturbed import KILLED
from tests.contract.small_images import table_of, write_folder
from tests.forge import Forge, command
from vitrail import load
from vitrail.contract import Classifier
from vitrail.data.join import join_tables
from vitrail.data.prepare.image import image_loader
from vitrail.data.transform import Preprocess
from vitrail.errors import DataError, SpecError, UnknownNameError
from vitrail.training.recipe import noisy_student
from vitrail.training.recipe.image.pseudo import check_tables, choose_rows
from vitrail.training.task import Outcome, Task
from vitrail.verbs.train import train

MODEL = "vit_mu_patch4_8"
FAST = ("batch_size=32", "precision=float32", "workers=0", "steps=12", "eval_every=6", "small_until=0.0")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A few labelled digits, and others whose labels nobody may read."""
    from sklearn.datasets import load_digits

    found, folder = load_digits(), tmp_path_factory.mktemp("digits")
    images = (found.images * 15).astype(np.uint8)
    few, others = folder / "few.npz", folder / "others.npz"
    np.savez(few, x_train=images[:200], y_train=found.target[:200], x_test=images[1500:], y_test=found.target[1500:])
    np.savez(others, x=images[200:600], y=np.arange(400) % 10)
    return few, others


def test_rows_are_chosen_by_confidence_and_class() -> None:
    probabilities = np.array(
        [[0.9, 0.1], [0.8, 0.2], [0.95, 0.05], [0.2, 0.8], [0.55, 0.45], [0.99, 0.01]], dtype=np.float32
    )
    assert choose_rows(probabilities, 0.7).tolist() == [0, 2, 3, 5]  # five are confident, so three of each class
    assert choose_rows(probabilities, 0.97).tolist() == [5]
    assert choose_rows(probabilities, 0.999).tolist() == []


def test_tables_are_joined() -> None:
    first, second = table_of([0, 1, 2]), table_of([2, 0, 1])
    joined = join_tables(first, second)
    assert joined.labels.tolist() == [0, 1, 2, 2, 0, 1]
    assert joined.targets is None
    assert np.array_equal(joined.content(4), second.content(1))
    soft = table_of([2, 0])
    targets = np.array([[0.1, 0.2, 0.7], [0.6, 0.3, 0.1]], dtype=np.float32)
    object.__setattr__(soft, "targets", targets)
    joined = join_tables(first, soft)
    assert joined.targets is not None
    assert joined.targets[:2].tolist() == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    loader = image_loader(joined.only([4, 1]), Preprocess(size=(8, 8)), batch_size=2)
    labels = next(loader.batches()).fields["label"]
    assert torch.equal(labels, torch.tensor([targets[1].tolist(), [0.0, 1.0, 0.0]]))


def noisy_words(data: tuple[Path, Path], run: Path, *more: str) -> list[str]:
    few, others = data
    words = ["train", str(few), "--recipe", "noisy_student", "--unlabelled", str(others), "--model", MODEL]
    return [*words, "--run", str(run), *FAST, "steps=40", "confidence=0.05", "generations=2", *more]


@pytest.fixture(scope="module")
def noisy(digits: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory, forge: Forge) -> Path:
    folder = tmp_path_factory.mktemp("noisy")
    code = forge.run(command, noisy_words(digits, folder / "run"), log=folder / "log")
    assert code == 0, (folder / "log").read_text()
    return folder / "run"


def test_noisy_student(noisy: Path) -> None:
    result = json.loads((noisy / "result.json").read_text())
    story = " ".join(result["story"])
    assert "Teacher: " in story
    assert "Student 1, " in story
    assert "of 400 images labelled with a confidence of 5 % or more" in story
    assert (noisy / "stages" / "teacher" / "metrics.jsonl").is_file()
    assert (noisy / "stages" / "student-1" / "metrics.jsonl").is_file()
    assert result["steps"] >= 80
    assert "</span>teacher" in (noisy / "report.html").read_text(), "several trainings by name"


def test_labels_of_the_unlabelled_are_not_read(
    noisy: Path, digits: tuple[Path, Path], tmp_path: Path, forge: Forge
) -> None:
    """The same images with other labels give the same model."""
    few, others = digits
    stored = np.load(others)
    np.savez(tmp_path / "others.npz", x=stored["x"], y=(stored["y"] * 7 + 3) % 10)
    words = noisy_words((few, tmp_path / "others.npz"), tmp_path / "run")
    assert forge.run(command, words, log=tmp_path / "log") == 0, (tmp_path / "log").read_text()
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (noisy / "model.safetensors").read_bytes()


@pytest.mark.parametrize("step", [10, 55])
def test_noisy_student_is_killed_in_each_stage(
    step: int, noisy: Path, digits: tuple[Path, Path], tmp_path: Path, forge: Forge
) -> None:
    """In the teacher's and in the first student's."""
    killed = tmp_path / "killed"
    words = noisy_words(digits, killed)
    kill = partial(forked.kill_in, "vitrail.training.loop", "compute_gradients", step)
    assert forge.run(command, words, kill, log=tmp_path / "log") == KILLED
    assert not (killed / "result.json").exists()
    assert forge.run(command, words, log=tmp_path / "log") == 0, (tmp_path / "log").read_text()
    assert (killed / "model.safetensors").read_bytes() == (noisy / "model.safetensors").read_bytes()


def test_noisy_student_chooses_its_model_and_its_teacher(
    digits: tuple[Path, Path], noisy: Path, tmp_path: Path
) -> None:
    few, others = digits
    result = train(few, recipe="noisy_student", unlabelled=others, run=tmp_path / "chosen", minutes=0.1)
    assert load(tmp_path / "chosen").name.startswith(("vit_nano_conv", "vit_tiny_conv"))
    assert "Teacher: " in result.story[0]
    for number, more in enumerate((["steps=3"], ["steps=3", "teacher=finetuned"])):
        run, words = tmp_path / f"weights-{number}", [*more, "batch_size=32"]
        result = train(few, recipe="noisy_student", unlabelled=others, weights=noisy, run=run, settings=words)
        assert (result.story[-1] == "The probe was refitted on all 200 images.") == (not number)
        assert (run / "stages" / "teacher" / "metrics.jsonl").is_file() == bool(number), "a probe has no steps"
        assert number or "</span>training loss" in (run / "report.html").read_text(), "of the only training"


@pytest.mark.parametrize("change", ["", "warm_start=false", "student_model=deit_mu_patch4_8"])
def test_a_student_starts_from_its_teachers_weights(
    change: str, digits: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or anew, if the user prefers that or another model, even one of the same shapes."""
    few, others = digits
    fit, seen = noisy_student._fit, []

    def recorded(stage: Task, model: Classifier) -> Outcome:
        start = deepcopy(model.state_dict())
        outcome = fit(stage, model)
        seen.append((start, deepcopy(outcome.model.state_dict())))
        return outcome

    monkeypatch.setattr(noisy_student, "_fit", recorded)
    settings = [*FAST, "steps=6", "confidence=0.05", *([change] if change else [])]
    train(few, recipe="noisy_student", unlabelled=others, model=MODEL, run=tmp_path / "run", settings=settings)
    (start, teacher), (student, _) = seen
    expected = start if change else teacher
    assert all(torch.equal(student[name], tensor) for name, tensor in expected.items())


def test_without_confident_predictions_the_teacher_trains_on(
    digits: tuple[Path, Path], tmp_path: Path, forge: Forge
) -> None:
    run = tmp_path / "run"
    code = forge.run(command, noisy_words(digits, run, "confidence=0.999"), log=tmp_path / "log")
    assert code == 0, (tmp_path / "log").read_text()
    result = json.loads((run / "result.json").read_text())
    assert "No image was labelled" in result["story"][1]
    assert result["steps"] == 80
    assert sorted(path.name for path in (run / "stages").iterdir()) == ["alone", "teacher"]


def test_images_to_judge_by_are_not_learned(digits: tuple[Path, Path], tmp_path: Path) -> None:
    """Copies of validation and test images among the unlabelled ones are left out."""
    few, _ = digits
    stored, copies = np.load(few), tmp_path / "copies.npz"
    np.savez(copies, x=np.concatenate([stored["x_test"], stored["x_train"]]), y=np.zeros(497, dtype=np.int64))
    settings = [*FAST, "confidence=0.01"]  # all of them
    result = train(few, recipe="noisy_student", unlabelled=copies, model=MODEL, run=tmp_path / "run", settings=settings)
    labelled = re.search(
        r"Student 1, (\d+) of 497 images \(without (\d+) that are used for validation", result.story[1]
    )
    assert labelled is not None, result.story
    assert int(labelled[1]) <= 200 - 20
    assert int(labelled[2]) > 20


def test_unreadable_unlabelled_images_do_not_end_a_run(tmp_path: Path) -> None:
    write_folder(tmp_path / "few", 60)
    write_folder(tmp_path / "others", 30)
    (tmp_path / "others" / "a" / "broken.png").write_bytes(b"broken")
    options: dict[str, Any] = {"recipe": "noisy_student", "unlabelled": tmp_path / "others", "model": MODEL}
    result = train(tmp_path / "few", **options, run=tmp_path / "run", settings=[*FAST, "steps=2", "confidence=0.01"])
    assert "of 31 images, 1 of them unreadable" in result.story[1]


@pytest.mark.parametrize("generations", range(1, 13))
def test_the_last_student_has_the_rest_of_the_minutes(generations: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly, because the end of a run has its time reserved in the stage that ends at 1."""
    untils = []

    def make(*_: Any, until: float, **__: Any) -> Any:
        untils.append(until)
        raise KeyboardInterrupt

    monkeypatch.setattr(noisy_student, "make_student_stage", make)
    for settings in (noisy_student.Spec(generations=generations), noisy_student.TuningSpec(generations=generations)):
        task: Any = SimpleNamespace(settings=settings)
        for number in range(1, generations + 1):
            with pytest.raises(KeyboardInterrupt):
                noisy_student._train_student(task, number, None, None)
        assert untils.pop() == 1.0
        assert all(until < 1.0 for until in untils)


def test_unlabelled_data_of_another_kind() -> None:
    images = table_of([0, 1])
    with pytest.raises(DataError, match="another kind"):
        check_tables(images, replace(images, modalities=("sound",)))


def test_bad_unlabelled_data(digits: tuple[Path, Path], tmp_path: Path) -> None:
    few, others = digits
    with pytest.raises(DataError, match="needs images without labels"):
        train(few, recipe="noisy_student", model=MODEL, run=tmp_path / "run")
    with pytest.raises(DataError, match="uses no unlabelled images"):
        train(few, recipe="scratch", unlabelled=others, model=MODEL, run=tmp_path / "run")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DataError, match="no images"):
        train(few, recipe="noisy_student", unlabelled=empty, model=MODEL, run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "settings", "match"),
    [
        ("vit_mu_patch3", (), "vit_mu_patch3"),
        ("perceiver_mu_sound80", (), "perceiver_mu_sound80 is not a model of images"),
        (
            "resnet26_32",
            ("model.hidden=48",),
            "student_model=resnet26_32 cannot be built: there is no setting 'hidden'",
        ),
    ],
)
def test_bad_models_for_students(
    name: str, settings: tuple[str, ...], match: str, digits: tuple[Path, Path], tmp_path: Path
) -> None:
    """Before the teacher trains."""
    few, others = digits
    options: dict[str, Any] = {"recipe": "noisy_student", "unlabelled": others, "run": tmp_path / "run"}
    with pytest.raises((SpecError, UnknownNameError), match=match):
        train(few, model=MODEL, settings=[f"student_model={name}", *settings], **options)
    assert not (tmp_path / "run" / "stages").exists()


def test_students_of_weights_have_their_model(noisy: Path, digits: tuple[Path, Path], tmp_path: Path) -> None:
    few, others = digits
    options: dict[str, Any] = {"recipe": "noisy_student", "unlabelled": others, "run": tmp_path / "run"}
    with pytest.raises(SpecError, match="have the model of the weights"):
        train(few, weights=noisy, settings=["student_model=vit_mu_patch2_8"], **options)
