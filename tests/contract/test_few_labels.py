"""Teachers and flat minima: distillation and SAM."""

from __future__ import annotations

import json
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.contract import forked
from tests.contract.disturbed import KILLED
from tests.contract.forked import bits
from tests.forge import Forge, command
from vitrail import load, plug
from vitrail.calibration import Calibration
from vitrail.catalogue import create_model
from vitrail.contract import Classifier
from vitrail.data.transform import Preprocess
from vitrail.errors import DataError, SpecError, WeightsError
from vitrail.inspection import sharpness as sharpness_module
from vitrail.inspection.sharpness import measure_sharpness
from vitrail.objective.classify import Classify
from vitrail.objective.distill import Distill
from vitrail.training.recipe.image.teacher import Teacher
from vitrail.training.sam import ascended
from vitrail.training.task import Task
from vitrail.verbs.bench import sharpness
from vitrail.verbs.export import export
from vitrail.verbs.train import train

MODEL = "vit_mu_patch4_8"
FAST = ("batch_size=32", "precision=float32", "workers=0", "steps=12", "eval_every=6", "small_until=0.0")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("teacher") / "run"
    train("digits", model=MODEL, recipe="scratch", run=path, settings=[*FAST, "steps=40"])
    return path


def student_like(teacher: Path) -> tuple[Any, Any]:
    model = create_model(MODEL, num_classes=10)
    torch.nn.init.normal_(model.head.weight, std=0.1)
    return model, load(teacher)


def test_a_teacher_sees_what_it_would_see(teacher: Path) -> None:
    """Its logits for the student's images are those for the same pixels in its own normalisation and order."""
    model, theirs = student_like(teacher)
    ours = Preprocess(size=(8, 8), mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    pixels = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    classes = tuple(reversed(theirs.labels))
    taught = Teacher(theirs, ours, classes)(ours.normalise(pixels))
    with torch.inference_mode():
        direct = theirs(theirs.preprocess.normalise(pixels))
    assert torch.allclose(taught, direct.flip(1), atol=1e-4)
    assert not any(parameter.requires_grad for parameter in theirs.parameters())
    larger = Preprocess(size=(16, 16), mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    flat = np.full((1, 16, 16, 3), 77, dtype=np.uint8)
    small = theirs(theirs.preprocess.normalise(flat[:, :8, :8]))
    assert torch.allclose(Teacher(theirs, larger, theirs.labels)(larger.normalise(flat)), small, atol=1e-3)
    assert deepcopy(Teacher(theirs, ours, classes)).model is theirs
    assert model.training


def test_an_exported_teacher(teacher: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    export(teacher, format="onnx", out=tmp_path / "out")
    from vitrail.run.open import open_model

    exported, theirs = open_model(next((tmp_path / "out").glob("**/*.onnx"))), load(teacher)
    ours = Preprocess(size=(8, 8))
    images = ours.normalise(np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8))
    one, other = (Teacher(each, ours, theirs.labels)(images) for each in (exported, theirs))
    assert torch.allclose(one, other, atol=1e-3)


def test_the_loss_is_deits() -> None:
    """Equations 2 and 3 of arXiv 2012.12877, transcribed."""
    torch.manual_seed(0)
    student, taught, labels = torch.randn(6, 5), torch.randn(6, 5), torch.arange(6) % 5
    model = _Fixed((student,))
    fields = {"image": torch.zeros(6, 3, 8, 8), "label": labels}
    cross_entropy = torch.nn.functional.cross_entropy
    hard = Distill(Classify(), lambda _: taught)(model, fields)
    expected = 0.5 * cross_entropy(student, labels, reduction="none")
    expected = expected + 0.5 * cross_entropy(student, taught.argmax(dim=1), reduction="none")
    assert torch.allclose(hard, expected)
    soft = Distill(Classify(), lambda _: taught, distillation="soft", weight=0.3, temperature=2.0)(model, fields)
    p, q = (taught / 2).softmax(dim=1), (student / 2).softmax(dim=1)
    divergence = (p * (p / q).log()).sum(dim=1)
    assert torch.allclose(
        soft, 0.7 * cross_entropy(student, labels, reduction="none") + 0.3 * 4 * divergence, atol=1e-5
    )
    other = torch.randn(6, 5)
    token = Distill(Classify(), lambda _: taught)(_Fixed((student, other)), fields)
    expected = 0.5 * cross_entropy(student, labels, reduction="none")
    assert torch.allclose(token, expected + 0.5 * cross_entropy(other, taught.argmax(dim=1), reduction="none"))


class _Fixed(Classifier):
    """A classifier with these logits."""

    def __init__(self, logits: tuple[torch.Tensor, ...]) -> None:
        super().__init__()
        self.logits = logits

    def tokenize(self, image: torch.Tensor) -> torch.Tensor:
        return image

    encode = tokenize

    def classify_each(self, _: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.logits


def test_a_student_and_its_teacher(teacher: Path, tmp_path: Path) -> None:
    """The teacher stays as it was, and is in neither the checkpoint nor the model."""
    before = {name: tensor.clone() for name, tensor in load(teacher).state_dict().items()}
    model = "deit_mu_distilled_patch4_8"
    result = train("digits", model=model, recipe="distill", teacher=teacher, run=tmp_path / "run", settings=FAST)
    assert result.steps == 12
    assert "Distilled" in result.story[0]
    assert all(torch.equal(tensor, before[name]) for name, tensor in load(teacher).state_dict().items())
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert f"teacher: {teacher}" in config
    assert load(tmp_path / "run").state_dict().keys() == create_model(model, num_classes=10).state_dict().keys()
    given = load(teacher)
    again = train("digits", model=model, recipe="distill", teacher=given, run=tmp_path / "object", settings=FAST)
    assert again.val == result.val


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"recipe": "distill"}, "needs a teacher"),
        ({"recipe": "scratch", "teacher": "x"}, "has no teacher"),
        ({"recipe": "distill", "teacher": "nowhere/run"}, "the teacher cannot be opened: there is nothing at"),
        ({"recipe": "distill", "teacher": "vit_mu_patch4_8"}, "cannot be opened: vit_mu_patch4_8 is a model without w"),
    ],
)
def test_bad_teachers(options: dict[str, Any], match: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=match):
        train("digits", model=MODEL, run=tmp_path / "run", settings=FAST, **options)
    assert not (tmp_path / "run").exists()


def test_a_teacher_of_other_classes(teacher: Path) -> None:
    theirs = load(teacher)
    with pytest.raises(WeightsError, match="other classes"):
        Teacher(theirs, Preprocess(size=(8, 8)), ("cat", *theirs.labels[1:]))
    with pytest.raises(WeightsError, match="10 classes; the data has 3"):
        Teacher(theirs, Preprocess(size=(8, 8)), theirs.labels[:3])
    theirs.describe(calibration=Calibration(multi_label=True))
    with pytest.raises(WeightsError, match="any number of labels"):
        Teacher(theirs, Preprocess(size=(8, 8)), theirs.labels)
    theirs.describe(calibration=Calibration())
    theirs.labels = ()
    with pytest.raises(WeightsError, match="does not say which classes"):
        Teacher(theirs, Preprocess(size=(8, 8)), ("cat", "dog"))
    grey = create_model(MODEL, num_classes=10, channels=1)
    grey.labels = tuple("0123456789")
    with pytest.raises(WeightsError, match="cannot read the student's images"):
        Teacher(grey, Preprocess(size=(8, 8)), grey.labels)


def test_the_teacher_counts_where_a_model_is_chosen(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []

    def measure(_: Task, model: Classifier, objective: object = None) -> float:
        measured.append((model.name, type(objective)))
        return 1e6

    monkeypatch.setattr(Task, "measure_speed", measure)
    train("digits", recipe="distill", teacher=teacher, run=tmp_path / "run", minutes=0.02, settings=FAST[:3])
    assert measured
    assert {kind for _, kind in measured} == {Distill}


def test_sam_goes_up_and_exactly_back() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(4, 3)
    layer(torch.randn(5, 4)).square().sum().backward()
    before = [parameter.detach().clone() for parameter in layer.parameters()]
    gradients = torch.cat([parameter.grad.flatten() for parameter in layer.parameters()])
    with ascended(layer.parameters(), 0.05):
        moved = torch.cat(
            [(parameter.detach() - old).flatten() for parameter, old in zip(layer.parameters(), before, strict=True)]
        )
        assert moved.norm().item() == pytest.approx(0.05, rel=1e-4)
        assert torch.allclose(moved, 0.05 * gradients / gradients.norm(), atol=1e-6)
    assert all(torch.equal(parameter, old) for parameter, old in zip(layer.parameters(), before, strict=True))


def test_sam_in_parts_and_resumed(tmp_path: Path, forge: Forge) -> None:
    """The same losses in one part and in two; killed and resumed, the same bits; not those without SAM."""
    words = ["train", "digits", "--recipe", "scratch", "--model", MODEL]
    words += [*FAST, "save_every=4", "optimizer=sgd", "lr=0.1"]

    def run(name: str, *more: str, act: Any = None) -> int:
        return forge.run(
            command, [*words, "--run", str(tmp_path / name), *more], *([act] if act else []), log=tmp_path / "log"
        )

    def losses(name: str) -> list[float]:
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        return [line["loss"] for line in lines if "loss" in line]

    assert run("plain") == 0
    assert run("whole", "sam=0.5") == 0, (tmp_path / "log").read_text()
    assert run("parts", "sam=0.5", "accumulate=2") == 0
    assert losses("parts") == pytest.approx(losses("whole"), abs=1e-5)
    assert losses("plain") != pytest.approx(losses("whole"), abs=1e-4)
    kill = partial(forked.kill_in, "vitrail.training.loop", "compute_gradients", 7)
    assert run("killed", "sam=0.5", act=kill) == KILLED
    assert run("killed", "sam=0.5") == 0
    assert bits(tmp_path / "killed") == bits(tmp_path / "whole")


def test_the_largest_eigenvalue_is_the_hessians() -> None:
    """Power iteration, without the matrix, against the matrix of a tiny classifier."""
    torch.manual_seed(0)
    model = create_model("linear_8", num_classes=3)
    torch.nn.init.normal_(model.head.weight, std=0.05)
    images, labels = torch.randn(12, 3, 8, 8), torch.arange(12) % 3
    parameters = list(model.parameters())
    sizes = [parameter.numel() for parameter in parameters]

    def loss(flat: torch.Tensor) -> torch.Tensor:
        named = dict(
            zip(
                (name for name, _ in model.named_parameters()),
                (part.view_as(old) for part, old in zip(flat.split(sizes), parameters, strict=True)),
                strict=True,
            )
        )
        return torch.nn.functional.cross_entropy(torch.func.functional_call(model, named, images), labels)

    flat = torch.cat([parameter.detach().flatten() for parameter in parameters])
    largest = torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, flat))[-1].item()
    found = measure_sharpness(model, [(images[:8], labels[:8]), (images[8:], labels[8:])])
    assert found.eigenvalue == pytest.approx(largest, rel=0.05)
    assert found.loss == pytest.approx(loss(flat).item(), rel=1e-5)
    assert found.worst[len(found.worst) // 2] == pytest.approx(found.loss, rel=1e-5)
    assert max(found.worst) > max(found.random)
    assert all(
        torch.equal(parameter, old.view_as(parameter))
        for parameter, old in zip(model.parameters(), flat.split(sizes), strict=True)
    )


def test_the_sharpness_of_a_run(teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = sharpness(teacher, "digits", out=tmp_path / "sharp.png")
    assert found.num_images == 256
    assert found.eigenvalue > 0
    assert found.converged
    monkeypatch.setattr(sharpness_module, "MAX_ITERATIONS", 2)
    assert not sharpness(teacher, "digits", out=tmp_path / "sharp.png").converged
    assert (tmp_path / "sharp.png").stat().st_size > 5000
    with pytest.raises(DataError, match="images of its classes"):
        sharpness(teacher, _two_classes(tmp_path), out=tmp_path / "other.png")
    assert not (tmp_path / "other.png").exists()


def _two_classes(folder: Path) -> Path:
    np.savez(folder / "two.npz", x=np.zeros((8, 8, 8), dtype=np.uint8), y=np.arange(8) % 2)
    return folder / "two.npz"


def test_infinite_learning_rates_are_refused() -> None:
    for recipe in LR:
        for has_weights in (False, True):
            with pytest.raises(SpecError, match="lr"):
                plug.load("vitrail.training.recipe", recipe).spec(has_weights=has_weights).parse({"lr": float("inf")})


LR = {"distill": 3e-4, "noisy_student": 1e-4, "pretrain": 1e-4}  # from weights


@pytest.mark.parametrize("recipe", LR)
def test_settings_are_those_of_training_from_scratch_or_from_weights(recipe: str) -> None:
    """Besides their own, whatever order the classes are combined in."""
    module = plug.load("vitrail.training.recipe", recipe)
    scratch = {"optimizer": "muon", "lr": 0.02, "batch_size": 128, "ema": 0.99}
    assert {name: getattr(module.Spec(), name) for name in scratch} == scratch
    tuned = {"optimizer": "adamw", "lr": LR[recipe], "layer_decay": 0.75, "batch_size": 64}
    assert {name: getattr(module.spec(has_weights=True)(), name) for name in tuned} == tuned
