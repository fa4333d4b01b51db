"""How often a plain ONNX Runtime script agrees with `vitrail predict`, on the same exported file and resized pixels.

python benchmarks/alone.py deit_tiny_patch16_224 IMAGENET --weights FILE > benchmarks/alone.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime

from vitrail import export, predict
from vitrail.benchmark.compare import hardware
from vitrail.run.open import open_model

BATCH_SIZE = 25


def main() -> None:
    """Export, predict with both, and count equal labels."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("images", type=Path)
    parser.add_argument("--weights")
    args = parser.parse_args()
    rows = list(predict(args.model, [args.images], weights=args.weights))
    preprocess = open_model(args.model, args.weights).preprocess
    pixels = np.stack([preprocess.resize_and_crop(preprocess.decode(Path(row.path).read_bytes())) for row in rows])
    with tempfile.TemporaryDirectory() as folder:
        file = export(args.model, weights=args.weights, format="onnx", out=Path(folder) / "out")["path"]
        labels = predict_with_onnxruntime(file, pixels)
    same = sum(
        row.prediction is not None and row.prediction.label == label for row, label in zip(rows, labels, strict=True)
    )
    print(json.dumps({"model": args.model, "images": len(rows), "same label": same, "hardware": hardware()}, indent=1))


def predict_with_onnxruntime(file: str, pixels: np.ndarray) -> list[str]:
    """The labels of images, without Vitrail."""
    session = onnxruntime.InferenceSession(file)
    metadata = json.loads(session.get_modelmeta().custom_metadata_map["vitrail"])
    labels: list[str] = []
    for start in range(0, len(pixels), BATCH_SIZE):
        confidence = session.run(["confidence"], {"pixels": pixels[start : start + BATCH_SIZE]})[0]
        labels += [metadata["labels"][index] for index in confidence.argmax(axis=1)]
    return labels


if __name__ == "__main__":
    main()
