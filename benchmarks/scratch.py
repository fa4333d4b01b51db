"""CIFAR-10 from scratch: Vitrail's recipe and timm's plain ViT, for the same time on the same cores, in turns.

    python benchmarks/scratch.py cifar10.npz --minutes 5 --seeds 3 > benchmarks/scratch-5.json
    taskset -c 0 python benchmarks/scratch.py cifar10.npz --minutes 8 --ingredients > benchmarks/ingredients.json

Ingredients are taken away one at a time from a model that stays the same, so that nothing else is chosen by the time.
cifar10.npz holds x_train, y_train, x_test and y_test of the full set, uint8. Vitrail's minutes are those of the whole
command, with looking for duplicates, validation and test; timm's are those of its training steps alone.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

MEAN, DEVIATION = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)
BATCH, PAD = 128, 4
WITHOUT = {
    "the recipe": [],
    "without the convolutional stem (patches of 4 x 4)": ["--model", "vit_nano_patch4_gap_32"],
    "without the mean of the tokens (a class token)": [
        "model.class_token=true",
        "model.pool=token",
        "model.norm_after_pool=false",
        "model.position_prefix=null",
    ],
    "without Muon (AdamW)": ["optimizer=adamw", "lr=0.002"],
    "without small pictures first": ["small_until=0.0"],
    "without bfloat16": ["precision=float32"],
    "without the average of the weights": ["ema=0.0"],
    "without label smoothing": ["label_smoothing=0.0"],
    "without augmentation": ["augment.flip_rate=0.0", "augment.padding=0.001"],
}


def by_vitrail(data: Path, minutes: float, seed: int, words: list[str]) -> dict[str, float]:
    """One run of `vitrail train` in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "vitrail",
            "train",
            str(data),
            "--recipe",
            "scratch",
            "--minutes",
            str(minutes),
        ]
        command += ["--seed", str(seed), "--run", f"{folder}/run", "--json", "--quiet", *words]
        started = time.monotonic()
        result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)  # noqa: S603
    return {"top1": result["test"]["top1"], "steps": result["steps"], "seconds": round(time.monotonic() - started, 1)}


def by_timm(data: Path, minutes: float, seed: int) -> dict[str, float]:
    """timm's plain ViT (patch 4, depth 6, width 192), AdamW, crop and flip, cosine to zero, in a process of its own."""
    command = [sys.executable, __file__, str(data), "--minutes", str(minutes), "--peer", str(seed)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)  # noqa: S603


def peer(data: Path, minutes: float, seed: int) -> dict[str, float]:
    """What `by_timm` runs."""
    import torch

    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(seed)
    arrays = np.load(data)
    mean, deviation = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, DEVIATION))
    images, test = (torch.from_numpy(arrays[key]).permute(0, 3, 1, 2).float() for key in ("x_train", "x_test"))
    labels, truth = (torch.from_numpy(arrays[key]).flatten().long() for key in ("y_train", "y_test"))
    model = VisionTransformer(img_size=32, patch_size=4, embed_dim=192, depth=6, num_heads=3, num_classes=10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    started, step = time.monotonic(), 0
    while (done := (time.monotonic() - started) / (60 * minutes)) < 1.0:
        rows = torch.randint(len(images), (BATCH,))
        batch = torch.nn.functional.pad((images[rows] - mean) / deviation, (PAD,) * 4)
        top, left = (int(torch.randint(2 * PAD + 1, ())) for _ in range(2))
        batch = batch[:, :, top : top + 32, left : left + 32]
        batch = torch.where(torch.rand(BATCH, 1, 1, 1) < 0.5, batch.flip(3), batch)
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, done / 0.05) * 0.5 * (1 + math.cos(math.pi * done))
        loss = torch.nn.functional.cross_entropy(model(batch), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
    model.eval()
    with torch.inference_mode():
        right = [
            (model((part - mean) / deviation).argmax(1) == answer).sum().item()
            for part, answer in zip(test.split(500), truth.split(500), strict=True)
        ]
    return {"top1": sum(right) / len(truth), "steps": step, "seconds": round(time.monotonic() - started, 1)}


def main() -> None:
    """Run what the words ask for and print one JSON document."""
    words = argparse.ArgumentParser()
    words.add_argument("data", type=Path)
    words.add_argument("--minutes", type=float, default=5.0)
    words.add_argument("--seeds", type=int, default=3)
    words.add_argument("--alone", action="store_true", help="without timm")
    words.add_argument("--ingredients", action="store_true")
    words.add_argument("--peer", type=int)
    told = words.parse_args()
    if told.peer is not None:
        print(json.dumps(peer(told.data, told.minutes, told.peer)))
        return
    from vitrail.benchmark.compare import hardware

    document = {"minutes": told.minutes, "hardware": hardware(), "rows": []}
    if told.ingredients:
        document["cores"] = len(os.sched_getaffinity(0))
        for name, changes in WITHOUT.items():
            asked = changes if "--model" in changes else ["--model", "vit_nano_conv4_32", *changes]
            document["rows"].append({"name": name, "seed": 0, **by_vitrail(told.data, told.minutes, 0, asked)})
            print(document["rows"][-1], file=sys.stderr, flush=True)
    else:
        for seed in range(told.seeds):
            contenders = {"vitrail": lambda seed=seed: by_vitrail(told.data, told.minutes, seed, [])}
            if not told.alone:
                contenders["timm"] = lambda seed=seed: by_timm(told.data, told.minutes, seed)
            for name in sorted(contenders, reverse=bool(seed % 2)):
                document["rows"].append({"name": name, "seed": seed, **contenders[name]()})
                print(document["rows"][-1], file=sys.stderr, flush=True)
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
