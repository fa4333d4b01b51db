"""Stronger augmentation for runs that see each image very often."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.small_images import write_folder
from tests.contract.test_choices import FAST, RecordingView, decisions
from vitrail import create_model
from vitrail.data.augment import Augment
from vitrail.training import task as task_module
from vitrail.training.recipe import scratch
from vitrail.training.recipe.image.augmentation_choice import (
    CHANGES,
    LIGHT,
    MEDIUM,
    MIN_EPOCHS,
    STRONG,
    choose_augmentation,
)
from vitrail.training.task import Outcome, Task
from vitrail.verbs.train import train

MODEL = "vit_mu_patch4_gap_16"
SOME, MANY, NUM = round(MIN_EPOCHS[MEDIUM]), round(MIN_EPOCHS[STRONG]), 37


@pytest.fixture
def images(tmp_path: Path) -> Path:
    write_folder(tmp_path / "data", NUM)
    return tmp_path / "data"


@pytest.fixture
def task(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    """A task of one epoch."""
    tasks: list[Task] = []

    def catch(task: Task) -> Outcome:
        tasks.append(task)
        raise KeyboardInterrupt

    monkeypatch.setattr(scratch, "train", catch)
    with pytest.raises(KeyboardInterrupt):
        train(images, recipe="scratch", model=MODEL, run=tmp_path / "run", settings=("epochs=1",))
    return tasks[0]


def augment_of(task: Task, *words: str, **fields: Any) -> Augment:
    model = fields.pop("model", MODEL)
    chosen = replace(task, config={}, settings=task.settings.override_words(words), **fields)
    return choose_augmentation(chosen, create_model(model, num_classes=3)).settings.augment


def strength_of(augment: Augment) -> str:
    return next(
        name for name in (STRONG, MEDIUM, LIGHT) if all(getattr(augment, k) == v for k, v in CHANGES[name].items())
    )


def test_longer_runs_are_augmented_more(task: Task) -> None:
    assert strength_of(augment_of(task)) == LIGHT
    assert strength_of(augment_of(task, f"epochs={SOME - 1}")) == LIGHT
    assert strength_of(augment_of(task, f"epochs={SOME}")) == MEDIUM
    assert strength_of(augment_of(task, f"epochs={MANY - 1}")) == MEDIUM
    assert strength_of(augment_of(task, f"epochs={MANY}")) == STRONG
    assert strength_of(augment_of(task, f"epochs={MANY}", "augment_strength=light")) == LIGHT
    assert strength_of(augment_of(task, "augment_strength=strong")) == STRONG


@pytest.mark.parametrize(("epochs", "strength"), [(SOME * 0.9, LIGHT), (SOME * 1.1, MEDIUM), (MANY * 1.1, STRONG)])
def test_minutes_count_by_measured_speed(
    epochs: float, strength: str, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Task, "measure_speed", lambda *_: epochs * len(task.splits.train) / 60)
    assert strength_of(augment_of(task, "epochs=null", "minutes=1")) == strength


def test_what_the_user_changed_stays(task: Task) -> None:
    found = augment_of(task, f"epochs={MANY}", "augment.policy=three", "augment.flip_rate=0")
    assert (found.policy, found.flip_rate, found.crop) == ("three", 0.0, "padded")
    assert found.cutmix == CHANGES[STRONG]["cutmix"]
    drawn = augment_of(task, f"epochs={MANY}", "augment.draws=4")
    assert (drawn.policy, drawn.cutmix) == ("rand", 0.0)


def test_numbers_and_other_inputs_are_not(task: Task) -> None:
    table = task.splits.train
    values = replace(table, classes=(), values=table.labels.astype(float))
    assert strength_of(augment_of(task, f"epochs={MANY}", splits=task.splits._replace(train=values))) == LIGHT
    assert strength_of(augment_of(task, f"epochs={MANY}", model="vit_mu_patch4_8")) == LIGHT, "of 8 pixels"
    clips = replace(table, modalities=("sound",))
    assert strength_of(augment_of(task, f"epochs={MANY}", splits=task.splits._replace(train=clips))) == LIGHT


def test_the_choice_is_stored_and_runs_of_earlier_versions_keep_theirs(images: Path, tmp_path: Path) -> None:
    view, run = RecordingView(), tmp_path / "run"
    options: dict[str, Any] = {"recipe": "scratch", "model": MODEL, "run": run}
    options["settings"] = (*FAST, f"epochs={SOME}", "batch_size=32")
    train(images, **options, view=view)
    assert decisions(run)["augment_strength"] == MEDIUM
    assert sum("Augmentation: medium" in line for line in view.said) == 1
    (run / "result.json").unlink()
    config = yaml.safe_load((run / "config.yaml").read_text())
    del config["decisions"]["augment_strength"]
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    (run / "SHA256SUMS").unlink(missing_ok=True)
    again = RecordingView()
    train(images, **options, view=again)
    assert decisions(run)["augment_strength"] == LIGHT
    assert not any("Augmentation: medium" in line for line in again.said)


def test_what_a_choice_measured_is_not_measured_again(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, measure = [], task_module.measure_training

    def count(*args: Any) -> Any:
        measured.append(args)
        return measure(*args)

    monkeypatch.setattr(task_module, "measure_training", count)
    train(images, recipe="scratch", model=MODEL, run=tmp_path / "run", settings=FAST, minutes=0.02)
    assert decisions(tmp_path / "run").keys() >= {"augment_strength", "plan"}
    assert len(measured) == 1
