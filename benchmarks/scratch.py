"""Training from scratch: Vitrail's recipe, timm's plain ViT and logistic regression, on the same cores, in turns.

    python benchmarks/scratch.py cifar10.npz --minutes 5 --seeds 3 > benchmarks/scratch-5.json
    export ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2  # a newer machine behaves like an older one
    python benchmarks/scratch.py cifar10.npz --minutes 5 --seeds 3 > benchmarks/scratch-5-avx2.json
    python benchmarks/scratch.py fashion-mnist.npz --minutes 5 --seeds 3 > benchmarks/fashion-5-avx2.json
    taskset -c 0 python benchmarks/scratch.py cifar10.npz --minutes 8 --ingredients > benchmarks/ingredients.json

`--ingredients` removes one ingredient at a time, with a fixed model, so that the time does not change that choice.
The npz files contain x_train, y_train, x_test and y_test, uint8. Vitrail's minutes cover the whole command, with
the search for duplicates, validation and test; timm's cover only its training steps. Logistic regression is
scikit-learn's, on pixels divided by 255, stopped after 100 iterations; it has no seed and no time limit.
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
import warnings
from pathlib import Path
from typing import Any

import numpy as np

BATCH_SIZE, PAD = 128, 4
VARIANTS = {
    "the recipe": [],
    "without the convolutional stem (patches of 4 x 4)": ["--model", "vit_nano_patch4_gap_32"],
    "with a class token instead of mean pooling": [
        "model.class_token=true",
        "model.pool=token",
        "model.norm_after_pool=false",
        "model.position_prefix=null",
    ],
    "without Muon (AdamW)": ["optimizer=adamw", "lr=0.002"],
    "without smaller images at the start": ["small_until=0.0"],
    "without bfloat16": ["precision=float32"],
    "without the EMA of the weights": ["ema=0.0"],
    "without label smoothing": ["label_smoothing=0.0"],
    "without augmentation": ["augment.flip_rate=0.0", "augment.padding=0.001"],
}


def by_vitrail(data: Path, minutes: float, seed: int, words: list[str]) -> dict[str, Any]:
    """Run `vitrail train` in its own process."""
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
    return {
        "top1": result["test"]["top1"],
        "steps": result["steps"],
        "seconds": round(time.monotonic() - started, 1),
        **{key: result.get(key) for key in ("seconds_by_phase", "images_per_second")},
    }


def by_timm(data: Path, minutes: float, seed: int) -> dict[str, float]:
    """Train timm's plain ViT (patch 4, depth 6, width 192; AdamW, crop and flip, cosine to zero) in its own process."""
    command = [sys.executable, __file__, str(data), "--minutes", str(minutes), "--peer", str(seed)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)  # noqa: S603


def peer(data: Path, minutes: float, seed: int) -> dict[str, float]:
    """Train timm's ViT in this process."""
    import torch

    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(seed)
    arrays = read(data)
    images, test = (torch.from_numpy(arrays[key]).permute(0, 3, 1, 2).float() for key in ("x_train", "x_test"))
    labels, test_labels = (torch.from_numpy(arrays[key]).flatten().long() for key in ("y_train", "y_test"))
    mean, std = (value[None, :, None, None] for value in (images.mean((0, 2, 3)), images.std((0, 2, 3))))
    model = VisionTransformer(img_size=32, patch_size=4, embed_dim=192, depth=6, num_heads=3, num_classes=10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    started, step = time.monotonic(), 0
    while (done := (time.monotonic() - started) / (60 * minutes)) < 1.0:
        rows = torch.randint(len(images), (BATCH_SIZE,))
        batch = torch.nn.functional.pad((images[rows] - mean) / std, (PAD,) * 4)
        top, left = (int(torch.randint(2 * PAD + 1, ())) for _ in range(2))
        batch = batch[:, :, top : top + 32, left : left + 32]
        batch = torch.where(torch.rand(BATCH_SIZE, 1, 1, 1) < 0.5, batch.flip(3), batch)
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
        num_correct = [
            (model((images_part - mean) / std).argmax(1) == labels_part).sum().item()
            for images_part, labels_part in zip(test.split(500), test_labels.split(500), strict=True)
        ]
    return {"top1": sum(num_correct) / len(test_labels), "steps": step, "seconds": round(time.monotonic() - started, 1)}


def read(data: Path) -> dict[str, np.ndarray]:
    """Read the arrays as colour images of 32 x 32 pixels."""
    arrays = dict(np.load(data))
    for key in ("x_train", "x_test"):
        images = arrays[key] if arrays[key].ndim == 4 else np.repeat(arrays[key][..., None], 3, axis=3)
        margin = (32 - images.shape[1]) // 2
        arrays[key] = np.pad(images, ((0, 0), (margin, margin), (margin, margin), (0, 0)))
    return arrays


def by_regression(data: Path) -> dict[str, float]:
    """Logistic regression on pixels."""
    from sklearn.linear_model import LogisticRegression

    arrays = np.load(data)
    rows, test = (arrays[key].reshape(len(arrays[key]), -1).astype(np.float32) / 255 for key in ("x_train", "x_test"))
    started = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it stops before it converges
        fitted = LogisticRegression(max_iter=100).fit(rows, arrays["y_train"])
    top1 = float((fitted.predict(test) == arrays["y_test"]).mean())
    return {"top1": top1, "seconds": round(time.monotonic() - started, 1)}


def main() -> None:
    """Run the benchmark and print one JSON document."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--alone", action="store_true", help="without timm")
    parser.add_argument("--ingredients", action="store_true")
    parser.add_argument("--peer", type=int)
    args = parser.parse_args()
    if args.peer is not None:
        print(json.dumps(peer(args.data, args.minutes, args.peer)))
        return
    import torch

    from vitrail.benchmark.compare import hardware

    forced = {key: os.environ[key] for key in ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY") if key in os.environ}
    kernels = {"kernels": torch.backends.cpu.get_cpu_capability(), **forced}
    document = {
        "data": args.data.name,
        "minutes": args.minutes,
        "hardware": {**hardware(), **kernels},
        "rows": [],
    }
    if args.ingredients:
        document["cores"] = len(os.sched_getaffinity(0))
        for name, changes in VARIANTS.items():
            options = changes if "--model" in changes else ["--model", "vit_nano_conv4_32", *changes]
            document["rows"].append({"name": name, "seed": 0, **by_vitrail(args.data, args.minutes, 0, options)})
            print(document["rows"][-1], file=sys.stderr, flush=True)
    else:
        if not args.alone:
            document["rows"].append({"name": "logistic regression", **by_regression(args.data)})
            print(document["rows"][-1], file=sys.stderr, flush=True)
        for seed in range(args.seeds):
            contenders = {"vitrail": lambda seed=seed: by_vitrail(args.data, args.minutes, seed, [])}
            if not args.alone:
                contenders["timm"] = lambda seed=seed: by_timm(args.data, args.minutes, seed)
            for name in sorted(contenders, reverse=bool(seed % 2)):
                document["rows"].append({"name": name, "seed": seed, **contenders[name]()})
                print(document["rows"][-1], file=sys.stderr, flush=True)
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
