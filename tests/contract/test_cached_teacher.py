"""A teacher has fast kernels, and its logits are cached; a resumed run finds those of before."""

from __future__ import annotations

import resource
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.contract import forked
from tests.contract.disturbed import KILLED
from tests.contract.forked import bits
from tests.contract.small_images import table_of
from tests.forge import Forge, command
from vitrail.catalogue import create_model
from vitrail.data.augment import Augment
from vitrail.data.prepare.image import image_loader
from vitrail.data.transform import Preprocess
from vitrail.errors import SpecError
from vitrail.objective.classify import Classify
from vitrail.objective.distill import Distill
from vitrail.training.learner import Learner
from vitrail.training.recipe.image.cached_teacher import CachedTeacher
from vitrail.training.recipe.image.teacher import Teacher
from vitrail.training.throughput import Kernels

NUM_CLASSES = 3


class Fickle:
    """A teacher that never gives the same answer twice."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        self.asked.append(len(image))
        return torch.arange(len(image) * NUM_CLASSES).view(-1, NUM_CLASSES) + 100.0 * len(self.asked)


def remembering(path: Path, *, limit_gb: float = 1.0, ready: bool = True) -> tuple[Fickle, CachedTeacher]:
    teacher = Fickle()
    answers = CachedTeacher(teacher, path / "answers", num_classes=NUM_CLASSES, limit_gb=limit_gb, ready=lambda: ready)
    return teacher, answers


def images(*values: float) -> torch.Tensor:
    return torch.tensor(values).view(-1, 1, 1, 1).expand(-1, 3, 2, 2)


def test_images_are_augmented_as_before_after_so_many_epochs() -> None:
    source, preprocess = table_of([0, 1, 0, 1, 0], side=12), Preprocess(size=(8, 8))
    loader = image_loader(source, preprocess, augment=Augment(draws=2), batch_size=5, shuffle=True, workers=0)
    seen = []
    for epoch in range(4):
        batch = next(loader.epoch(epoch))
        seen.append(batch.fields["image"][batch.indices.argsort()])
    assert torch.equal(seen[0], seen[2])
    assert torch.equal(seen[1], seen[3])
    assert not torch.equal(seen[0], seen[1])


def test_mixed_images_never_come_again() -> None:
    with pytest.raises(SpecError, match="not mixed"):
        Augment(draws=2, mixup=0.2)


def test_known_answers_stay_as_they_are(tmp_path: Path) -> None:
    teacher, answers = remembering(tmp_path)
    first = answers(images(1, 2, 3))
    assert torch.equal(answers(images(3, 1, 2)), first[[2, 0, 1]])
    assert teacher.asked == [3]
    other = answers(images(2, 7, 1))
    assert teacher.asked == [3, 1], "only what is new is passed"
    assert torch.equal(other[[0, 2]], first[[1, 0]])
    assert torch.equal(answers(images(7)), other[1:2])
    again = answers(images(2, 7, 1))
    assert teacher.asked == [3, 1, 1], "and passed again where the batch is repeated, as after a kill"
    assert torch.equal(again[[0, 2]], first[[1, 0]])
    assert not torch.equal(again[1], other[1])


def test_nothing_is_remembered_before_the_run_starts(tmp_path: Path) -> None:
    teacher, answers = remembering(tmp_path, ready=False)
    answers(images(1))
    answers(images(1))
    assert teacher.asked == [1, 1]
    assert not (tmp_path / "answers").exists()


def test_answers_outlive_the_process_up_to_the_first_damage(tmp_path: Path) -> None:
    _, answers = remembering(tmp_path)
    first = answers(images(1, 2, 3))
    teacher, again = remembering(tmp_path)
    assert torch.equal(again(images(2, 3, 1)), first[[1, 2, 0]])
    assert teacher.asked == []
    stored = bytearray((tmp_path / "answers").read_bytes())
    size = len(stored) // 3
    stored[size + 20] ^= 1
    (tmp_path / "answers").write_bytes(bytes(stored) + b"torn")
    teacher, again = remembering(tmp_path)
    assert torch.equal(again(images(1)), first[:1])
    assert teacher.asked == []
    again(images(3))
    assert teacher.asked == [1]
    assert (tmp_path / "answers").stat().st_size == 2 * size


def test_answers_keep_to_the_limit(tmp_path: Path) -> None:
    teacher, answers = remembering(tmp_path, limit_gb=100 / 2**30)  # two records of 48 bytes
    first = answers(images(1, 2, 3))
    assert torch.equal(answers(images(1, 2)), first[:2])
    assert teacher.asked == [3]
    answers(images(3))
    answers(images(3))
    assert teacher.asked == [3, 1, 1]
    assert (tmp_path / "answers").stat().st_size == 96


@pytest.mark.parametrize("room", [0, 100])
def test_a_full_disk_ends_remembering(room: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also what has been remembered, two records of 48 bytes with 100 of them, so that checkpoints have its room."""
    teacher, answers = remembering(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        first = answers(images(1, 2)) if room else None
        for _ in range(2):
            found = answers(images(1, 2, 3))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert teacher.asked == ([2, 1, 3] if room else [3, 3])
    assert first is None or not torch.equal(found[:2], first)
    assert (tmp_path / "answers").stat().st_size == 0
    assert ["cannot be cached" in message for message in caplog.messages] == [True]


def test_a_teacher_runs_with_the_kernels_of_training() -> None:
    theirs = create_model("resnet26_32", num_classes=10, layers=(1,))
    theirs.labels = tuple("0123456789")
    student = create_model("vit_mu_patch4_8", num_classes=10)
    learner = Learner(student, Distill(Classify(), Teacher(theirs, Preprocess(size=(8, 8)), theirs.labels)))
    conv = next(module for module in theirs.modules() if isinstance(module, nn.Conv2d) and module.kernel_size != (1, 1))
    Kernels(channels_last=True).apply(learner)
    assert conv.weight.is_contiguous(memory_format=torch.channels_last)
    Kernels(channels_last=False).apply(learner)
    assert conv.weight.is_contiguous()


@pytest.fixture(scope="module")
def teacher_run(tmp_path_factory: pytest.TempPathFactory, forge: Forge) -> Path:
    run = tmp_path_factory.mktemp("teacher") / "run"
    words = ["train", "digits", "--recipe", "scratch", "--model", "vit_mu_patch4_8", "--run", str(run)]
    assert forge.run(command, [*words, *QUICK, "steps=20"], log=run.with_name("log")) == 0
    return run


QUICK = ("batch_size=32", "precision=float32", "workers=0", "small_until=0.0")


def test_a_killed_student_resumes_with_the_same_answers(teacher_run: Path, tmp_path: Path, forge: Forge) -> None:
    """Killed in the third epoch, whose augmentations are those of the first."""
    data = tmp_path / "few.npz"
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (160, 8, 8), dtype=np.uint8), np.arange(160) % 10
    np.savez(data, x_train=images, y_train=labels, x_test=images[:40], y_test=labels[:40])
    words = ["train", str(data), "--recipe", "distill", "--teacher", str(teacher_run), "--model", "vit_mu_patch4_8"]
    words += [*QUICK, "distillation=soft", "augment.draws=2", "steps=16", "save_every=6"]

    def run(name: str, act: partial[None] | None = None) -> int:
        acts = [] if act is None else [act]
        return forge.run(command, [*words, "--run", str(tmp_path / name)], *acts, log=tmp_path / "log")

    assert run("whole") == 0, (tmp_path / "log").read_text()
    assert not list((tmp_path / "whole").glob("*.logits"))
    kill = partial(forked.kill_in, "vitrail.training.loop", "compute_gradients", 11)
    assert run("killed", kill) == KILLED
    assert list((tmp_path / "killed").glob("*.logits"))
    (tmp_path / "killed" / "teacher-1.logits").touch()  # as if it had been started with two processes
    assert run("killed") == 0, (tmp_path / "log").read_text()
    assert not list((tmp_path / "killed").glob("*.logits"))
    assert bits(tmp_path / "killed") == bits(tmp_path / "whole")
