"""ReaL labels: a model's classes are matched with ImageNet's by name, whatever their order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from vitrail.about import About
from vitrail.contract import Classifier
from vitrail.data.labels import imagenet_classes
from vitrail.data.transform import Preprocess
from vitrail.errors import DataError
from vitrail.model import vit
from vitrail.verbs import evaluate as module
from vitrail.verbs.evaluate import evaluate

TENCH, GOLDFISH = 0, 1
NAMES = [each.name for each in imagenet_classes()]
WNIDS = [each.wnid for each in imagenet_classes()]


class Brightness(Classifier):
    """Predicts its first class for black images and its second for white ones."""

    def __init__(self, num_classes: int, labels: list[str] | None) -> None:
        super().__init__()
        self.spec = vit.Spec(num_classes=num_classes)
        self.about = About(preprocess=Preprocess(size=(8, 8)), labels=tuple(labels or ()))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(len(image), self.spec.num_classes)
        logits[:, 1] = image.mean(dim=(1, 2, 3))
        return logits


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two black tenches and a white goldfish, named as in ImageNet's validation set."""
    for number, (label, colour) in enumerate([("tench", "black"), ("tench", "black"), ("goldfish", "white")], start=1):
        path = tmp_path / "data" / label / f"ILSVRC2012_val_{number:08d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9), colour).save(path)
    (tmp_path / "real.json").write_text(json.dumps([[TENCH, 7], [], [GOLDFISH]]))
    return tmp_path


def real_top1(images: Path, model: Brightness, monkeypatch: pytest.MonkeyPatch) -> float | None:
    monkeypatch.setattr(module, "open_model", lambda *_: model)
    return evaluate("model", images / "data", real=images / "real.json").real_top1


@pytest.mark.parametrize(
    "labels",
    [
        None,
        NAMES,
        WNIDS,
        ["tench", "goldfish", *NAMES[:1:-1]],
        ["tench", "goldfish"],
        ["tench", "Carassius auratus", "tabby"],
    ],
    ids=["none", "names", "wnids", "another order", "a part", "other names"],
)
def test_a_model_with_classes_of_imagenet(
    images: Path, labels: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three images, two of them scored: ReaL ignores those without a label."""
    if labels is not None and "tench" not in labels:
        for name, wnid in (("tench", WNIDS[TENCH]), ("goldfish", WNIDS[GOLDFISH])):
            (images / "data" / name).rename(images / "data" / wnid)
    elif labels is not None and "goldfish" not in labels:
        (images / "data" / "goldfish").rename(images / "data" / "Carassius auratus")
    assert real_top1(images, Brightness(len(labels or NAMES), labels), monkeypatch) == 1.0


def test_the_number_of_a_class_is_not_its_place_in_the_model(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """White is predicted as class 1, which is a tench in this model and a goldfish in ImageNet."""
    model = Brightness(1000, ["goldfish", "tench", *NAMES[2:]])
    assert real_top1(images, model, monkeypatch) == 0.0


@pytest.mark.parametrize("labels", [None, ["tench", "goldfish", "my cat"], ["tench", "goldfish", "7"]])
def test_a_model_with_other_classes_is_refused(
    images: Path, labels: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if labels is None:
        for number, name in enumerate(("tench", "goldfish")):
            (images / "data" / name).rename(images / "data" / str(number))
    with pytest.raises(DataError, match="ReaL labels need a model with ImageNet's classes") as caught:
        real_top1(images, Brightness(3, labels), monkeypatch)
    assert caught.value.got == ("a model with 3 classes without names." if labels is None else f"{labels[-1]!r}.")


def test_other_images_and_other_files_are_refused(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (images / "real.json").write_text("[[0], []]")
    with pytest.raises(DataError, match="ImageNet's validation images"):
        real_top1(images, Brightness(1000, None), monkeypatch)
    (images / "real.json").write_text("3")
    with pytest.raises(DataError, match="does not contain ReaL labels"):
        real_top1(images, Brightness(1000, None), monkeypatch)
