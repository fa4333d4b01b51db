"""What does a model say to pictures of nothing that it knows? Of a run, on its own test pictures and on strange ones:

python benchmarks/unknown.py RUN DATA CIFAR.npz > benchmarks/unknown.json

Free energy, which `vitrail` uses, beside two distances of features: to the nearest class (Mahalanobis, arXiv
1807.03888) and to the tenth nearest training picture (arXiv 2204.06507), by the area under the ROC curve.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from sklearn.metrics import roc_auc_score
from torch import Tensor

from vitrail import load
from vitrail.benchmark.compare import hardware
from vitrail.data.find import open_data
from vitrail.data.loader import Loader
from vitrail.run.calibrate import free_energy
from vitrail.verbs.evaluate import evaluate

NUM = 500
WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "patches", "become", "tokens")


def main() -> None:
    """Measure and print one JSON document."""
    words = argparse.ArgumentParser()
    words.add_argument("run")
    words.add_argument("data")
    words.add_argument("cifar")
    told = words.parse_args()
    model, source, random = load(told.run), open_data(told.data), np.random.default_rng(0)
    strange = {
        "cifar": (picture.content() for picture in islice(open_data(told.cifar).split("test"), NUM)),
        "noise": noises(random),
        "blank": (np.full((224, 224, 3), random.integers(0, 256, 3), np.uint8) for _ in range(NUM // 5)),
        "text": screenshots(random),
    }
    known = {name: outputs(model, source.split(name)) for name in ("train", "test")}
    far = {name: outputs_of_pixels(model, pictures) for name, pictures in strange.items()}
    scores = measures(known["train"])
    judged = evaluate(told.run, told.data)
    document: dict[str, Any] = {
        "model": model.name,
        "test": {
            "n": judged.n,
            "top1": judged.top1,
            "ece": judged.ece,
            "ece_noise": judged.ece_noise,
            "uncalibrated_ece": judged.uncalibrated_ece,
            "false_alarms": judged.unknown,
        },
        "flagged": {name: model.calibration.unknown(each[1]).double().mean().item() for name, each in far.items()},
        "area_under_roc": {
            title: {name: area(score(*known["test"]), score(*each)) for name, each in far.items()}
            for title, score in scores.items()
        },
        "pictures": {name: len(logits) for name, (_, logits) in far.items()},
        "calibration": model.calibration.model_dump(),
        "hardware": hardware(),
    }
    print(json.dumps(document, indent=1))


def measures(train: tuple[Tensor, Tensor, Tensor]) -> dict[str, Any]:
    """How strange a picture is, in three ways."""
    features, _, labels = train
    means = torch.stack([features[labels == number].mean(dim=0) for number in range(int(labels.max()) + 1)])
    rest = features - means[labels]
    inverse = torch.linalg.inv(rest.T @ rest / len(rest) + 1e-3 * rest.var() * torch.eye(rest.shape[1]))
    unit = torch.nn.functional.normalize(features, dim=1)

    def mahalanobis(rows: Tensor, *_: Tensor) -> Tensor:
        gaps = rows[:, None] - means
        return torch.einsum("nkd,de,nke->nk", gaps, inverse, gaps).min(dim=1).values

    def neighbours(rows: Tensor, *_: Tensor) -> Tensor:
        return -(torch.nn.functional.normalize(rows, dim=1) @ unit.T).topk(10, dim=1).values[:, -1]

    def energy(_: Tensor, logits: Tensor, *__: Tensor) -> Tensor:
        return free_energy(logits, multi_label=False)

    return {"energy": energy, "mahalanobis": mahalanobis, "neighbours": neighbours}


def area(known: Tensor, strange: Tensor) -> float:
    """How often a strange picture is stranger than a known one."""
    truth = np.concatenate([np.zeros(len(known)), np.ones(len(strange))])
    return float(roc_auc_score(truth, torch.cat([known, strange]).numpy()))


@torch.inference_mode()
def _looked(model: Any, images: Tensor) -> tuple[Tensor, Tensor]:
    features = model.pool(model.encode(model.tokenize(images)))
    return features, model(images)


def outputs(model: Any, source: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Features, logits and labels of a split."""
    rows = [
        (*_looked(model, batch.images), batch.labels)
        for batch in Loader(source=source, preprocess=model.preprocess, batch_size=32).epoch()
    ]
    features, logits, labels = (torch.cat(column) for column in zip(*rows, strict=True))
    return features, logits, labels


def outputs_of_pixels(model: Any, pictures: Iterator[Any]) -> tuple[Tensor, Tensor]:
    """Features and logits of pictures that are no files."""
    preprocess = model.preprocess
    prepared = [preprocess.pixels(np.ascontiguousarray(each)) for each in pictures]
    rows = [
        _looked(model, preprocess.normalise(np.stack(prepared[start : start + 32])))
        for start in range(0, len(prepared), 32)
    ]
    features, logits = (torch.cat(column) for column in zip(*rows, strict=True))
    return features, logits


def noises(random: np.random.Generator) -> Iterator[Any]:
    """Even and bell-shaped noise."""
    for number in range(NUM // 5):
        even = random.integers(0, 256, (224, 224, 3))
        yield (even if number % 2 else random.normal(128, 40, (224, 224, 3)).clip(0, 255)).astype(np.uint8)


def screenshots(random: np.random.Generator) -> Iterator[Any]:
    """Pages of text, dark on light or light on dark."""
    for _ in range(NUM // 5):
        dark = random.random() < 0.3
        size = int(random.integers(300, 900)), int(random.integers(300, 700))
        page = Image.new("RGB", size, (24, 24, 24) if dark else (255, 255, 255))
        lines = "\n".join(" ".join(random.choice(WORDS, 12)) for _ in range(50))
        font = ImageFont.load_default(size=int(random.integers(11, 26)))
        ImageDraw.Draw(page).multiline_text((10, 10), lines, fill=(220, 220, 220) if dark else (0, 0, 0), font=font)
        yield np.array(page)


if __name__ == "__main__":
    main()
