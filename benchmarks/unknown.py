"""How well does a run detect unknown images? Measured on its own test images and on unfamiliar ones:

python benchmarks/unknown.py RUN DATA CIFAR.npz > benchmarks/unknown.json

Compares free energy, which `vitrail` uses, with two feature distances, to the nearest class (Mahalanobis, arXiv
1807.03888) and to the tenth nearest training image (arXiv 2204.06507), by the area under the ROC curve.
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
from vitrail.calibration import free_energy
from vitrail.data.find import open_data
from vitrail.data.prepare.image import image_loader
from vitrail.verbs.evaluate import evaluate

NUM = 500
WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "patches", "become", "tokens")


def main() -> None:
    """Measure and print one JSON document."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("data")
    parser.add_argument("cifar")
    args = parser.parse_args()
    model, source, rng = load(args.run), open_data(args.data), np.random.default_rng(0)
    unfamiliar = {
        "cifar": (item.content() for item in islice(open_data(args.cifar).split("test"), NUM)),
        "noise": make_noise(rng),
        "blank": (np.full((224, 224, 3), rng.integers(0, 256, 3), np.uint8) for _ in range(NUM // 5)),
        "text": make_screenshots(rng),
    }
    known = {name: split_outputs(model, source.split(name)) for name in ("train", "test")}
    far = {name: image_outputs(model, images) for name, images in unfamiliar.items()}
    scores = make_scores(known["train"])
    result = evaluate(args.run, args.data)
    document: dict[str, Any] = {
        "model": model.name,
        "test": {
            "n": result.n,
            "top1": result.top1,
            "ece": result.ece,
            "ece_noise": result.ece_noise,
            "uncalibrated_ece": result.uncalibrated_ece,
            "false_alarms": result.unknown,
        },
        "flagged": {name: model.calibration.unknown(each[1]).double().mean().item() for name, each in far.items()},
        "area_under_roc": {
            title: {name: roc_area(score(*known["test"]), score(*each)) for name, each in far.items()}
            for title, score in scores.items()
        },
        "pictures": {name: len(logits) for name, (_, logits) in far.items()},
        "calibration": model.calibration.model_dump(),
        "hardware": hardware(),
    }
    print(json.dumps(document, indent=1))


def make_scores(train: tuple[Tensor, Tensor, Tensor]) -> dict[str, Any]:
    """Three functions that score how unfamiliar an image is."""
    features, _, labels = train
    means = torch.stack([features[labels == number].mean(dim=0) for number in range(int(labels.max()) + 1)])
    residuals = features - means[labels]
    covariance = residuals.T @ residuals / len(residuals)
    inverse = torch.linalg.inv(covariance + 1e-3 * residuals.var() * torch.eye(residuals.shape[1]))
    unit = torch.nn.functional.normalize(features, dim=1)

    def mahalanobis(rows: Tensor, *_: Tensor) -> Tensor:
        gaps = rows[:, None] - means
        return torch.einsum("nkd,de,nke->nk", gaps, inverse, gaps).min(dim=1).values

    def neighbours(rows: Tensor, *_: Tensor) -> Tensor:
        return -(torch.nn.functional.normalize(rows, dim=1) @ unit.T).topk(10, dim=1).values[:, -1]

    def energy(_: Tensor, logits: Tensor, *__: Tensor) -> Tensor:
        return free_energy(logits, multi_label=False)

    return {"energy": energy, "mahalanobis": mahalanobis, "neighbours": neighbours}


def roc_area(known: Tensor, unfamiliar: Tensor) -> float:
    """The probability that an unfamiliar image scores higher than a known one."""
    truth = np.concatenate([np.zeros(len(known)), np.ones(len(unfamiliar))])
    return float(roc_auc_score(truth, torch.cat([known, unfamiliar]).numpy()))


@torch.inference_mode()
def _features_and_logits(model: Any, images: Tensor) -> tuple[Tensor, Tensor]:
    features = model.pool(model.encode(model.tokenize(images)))
    return features, model(images)


def split_outputs(model: Any, source: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Features, logits and labels of a split."""
    rows = [
        (*_features_and_logits(model, batch.fields["image"]), batch.fields["label"])
        for batch in image_loader(source, model.preprocess, batch_size=32).epoch()
    ]
    features, logits, labels = (torch.cat(column) for column in zip(*rows, strict=True))
    return features, logits, labels


def image_outputs(model: Any, images: Iterator[Any]) -> tuple[Tensor, Tensor]:
    """Features and logits of images in memory."""
    preprocess = model.preprocess
    prepared = [preprocess.resize_and_crop(np.ascontiguousarray(each)) for each in images]
    rows = [
        _features_and_logits(model, preprocess.normalise(np.stack(prepared[start : start + 32])))
        for start in range(0, len(prepared), 32)
    ]
    features, logits = (torch.cat(column) for column in zip(*rows, strict=True))
    return features, logits


def make_noise(rng: np.random.Generator) -> Iterator[Any]:
    """Uniform and Gaussian noise."""
    for number in range(NUM // 5):
        uniform = rng.integers(0, 256, (224, 224, 3))
        yield (uniform if number % 2 else rng.normal(128, 40, (224, 224, 3)).clip(0, 255)).astype(np.uint8)


def make_screenshots(rng: np.random.Generator) -> Iterator[Any]:
    """Pages of text, dark on light or light on dark."""
    for _ in range(NUM // 5):
        dark = rng.random() < 0.3
        size = int(rng.integers(300, 900)), int(rng.integers(300, 700))
        page = Image.new("RGB", size, (24, 24, 24) if dark else (255, 255, 255))
        lines = "\n".join(" ".join(rng.choice(WORDS, 12)) for _ in range(50))
        font = ImageFont.load_default(size=int(rng.integers(11, 26)))
        ImageDraw.Draw(page).multiline_text((10, 10), lines, fill=(220, 220, 220) if dark else (0, 0, 0), font=font)
        yield np.array(page)


if __name__ == "__main__":
    main()
