"""One Perceiver that reads an image and a sound at once: digits as images (MNIST) and as speech (Free Spoken Digit).

    OMP_NUM_THREADS=1 python benchmarks/perceiver_both.py DATA --minutes 6 --seed 0

`DATA` is a folder with mnist/mnist_10k_2k.npz and audio/fsdd_8k_int16.npz. Pixels are inputs one by one, and 32
neighbouring samples of sound are one input. In training, a sound is a random clip of the image's digit by one of five
speakers, and the image or the sound of a sample is blank in a fifth of the cases each. The test pairs other images with
clips of the sixth speaker: both, the image alone, and the sound alone. Minutes are processor minutes of training.
Writes JSON to stdout; benchmarks/perceiver.py keeps it.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail import create_model
from vitrail.batch import Fields
from vitrail.metric.interval import wilson_interval
from vitrail.objective.classify import Classify
from vitrail.training.learner import Learner
from vitrail.training.optim import make_optimizers

SAMPLES, BATCH, BLANK_RATE, LR = 4_800, 64, 0.2, 0.02
SPEAKER = "theo"
BLANKS: dict[str, tuple[str, ...]] = {"both": (), "image": ("sound",), "sound": ("image",)}
"""What is blank in each of the tests."""


def read_digits(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The images and the sounds by split: MNIST's, and those of five speakers and of the sixth."""
    stored, spoken = (dict(np.load(folder / name)) for name in ("mnist/mnist_10k_2k.npz", "audio/fsdd_8k_int16.npz"))
    images = {
        split: (stored[f"x_{split}"].reshape(-1, 1, 28, 28) / 127.5 - 1, stored[f"y_{split}"].ravel())
        for split in ("train", "test")
    }
    clips = np.stack([fit_clip(part) for part in np.split(spoken["audio"], spoken["offsets"][1:-1])])
    is_test = spoken["speaker"] == SPEAKER
    sounds = {name: (clips[rows], spoken["label"][rows]) for name, rows in (("train", ~is_test), ("test", is_test))}
    return images, sounds


def fit_clip(clip: NDArray[np.int16]) -> NDArray[np.float32]:
    """The middle of a clip, padded with zeros and divided by its RMS."""
    start = max(0, (len(clip) - SAMPLES) // 2)
    part = clip[start : start + SAMPLES].astype(np.float32)
    return np.pad(part / max(float(np.sqrt(np.mean(part**2))), 1e-6), (0, SAMPLES - len(part)))[None]


def pair(
    images: tuple[NDArray[Any], NDArray[Any]], sounds: tuple[NDArray[Any], NDArray[Any]], rng: np.random.Generator
) -> Any:
    """A function of the rows of images that returns a batch, each image with a random clip of its digit."""
    of_digit = [np.flatnonzero(sounds[1] == digit) for digit in range(10)]

    def batch(rows: NDArray[np.int64]) -> Fields:
        labels = images[1][rows]
        clips = [rng.choice(of_digit[label]) for label in labels]
        return {
            "image": torch.from_numpy(images[0][rows].astype(np.float32)),
            "sound": torch.from_numpy(sounds[0][clips]),
            "label": torch.from_numpy(labels.astype(np.int64)),
        }

    return batch


def blank(fields: Fields, name: str, rows: Tensor) -> Fields:
    """The batch with one input of these rows blank."""
    kept = (~rows).view(-1, *(1,) * (fields[name].ndim - 1))
    return {**fields, name: fields[name] * kept}


def main() -> None:
    """Train, test and print one JSON document."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    images, sounds = read_digits(args.data)
    sound = {"name": "sound", "size": [SAMPLES], "patch": [32]}
    model = create_model("perceiver_nano_28", num_classes=10, channels=1, more_inputs=[sound])
    learner = Learner(model, Classify(label_smoothing=0.1))
    optimizers = make_optimizers(learner, "muon", lr=LR, weight_decay=0.05)
    draw, num_images, steps = pair(images["train"], sounds["train"], rng), len(images["train"][1]), 0
    started = time.process_time()
    while (spent := (time.process_time() - started) / (60 * args.minutes)) < 1:
        fields = draw(rng.integers(0, num_images, BATCH))
        which = torch.rand(BATCH)
        fields = blank(blank(fields, "image", which < BLANK_RATE), "sound", which > 1 - BLANK_RATE)
        loss = learner(fields).mean()
        loss.backward()
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                initial = group.setdefault("initial_lr", group["lr"])
                group["lr"] = initial * min(1.0, spent / 0.05) * (0.5 + 0.5 * math.cos(math.pi * spent))
            optimizer.step()
            optimizer.zero_grad()
        steps += 1
    learner.eval()
    test = pair(images["test"], sounds["test"], np.random.default_rng(0))
    right = dict.fromkeys(BLANKS, 0)
    num = len(images["test"][1])
    with torch.inference_mode():
        for rows in np.split(np.arange(num), range(250, num, 250)):
            fields = test(rows)
            for name, names in BLANKS.items():
                shown = fields
                for each in names:
                    shown = blank(shown, each, torch.ones(len(rows), dtype=torch.bool))
                right[name] += int((model(shown["image"], shown["sound"]).argmax(1) == shown["label"]).sum())
    scores = {
        name: {"top1": count / num, "interval": wilson_interval(count, num), "n": num} for name, count in right.items()
    }
    params = sum(each.numel() for each in model.parameters())
    print(json.dumps({"test": scores, "steps": steps, "params": params, "tokens": model.spec.layout.num_tokens}))


if __name__ == "__main__":
    main()
