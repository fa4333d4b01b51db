"""How often a bare script of ONNX Runtime, given an exported file and resized pixels, says what `vitrail predict` says.

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

BATCH = 25


def main() -> None:
    """Export, ask both, count."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("model")
    words.add_argument("pictures", type=Path)
    words.add_argument("--weights")
    told = words.parse_args()
    rows = list(predict(told.model, [told.pictures], weights=told.weights))
    preprocess = open_model(told.model, told.weights).preprocess
    pixels = np.stack([preprocess.pixels(preprocess.decode(Path(row.path).read_bytes())) for row in rows])
    with tempfile.TemporaryDirectory() as folder:
        file = export(told.model, weights=told.weights, format="onnx", out=Path(folder) / "out")["path"]
        labels = bare(file, pixels)
    same = sum(
        row.prediction is not None and row.prediction.label == each for row, each in zip(rows, labels, strict=True)
    )
    print(
        json.dumps({"model": told.model, "pictures": len(rows), "same label": same, "hardware": hardware()}, indent=1)
    )


def bare(file: str, pixels: np.ndarray) -> list[str]:
    """Labels without Vitrail."""
    session = onnxruntime.InferenceSession(file)
    about = json.loads(session.get_modelmeta().custom_metadata_map["vitrail"])
    labels: list[str] = []
    for start in range(0, len(pixels), BATCH):
        confidence = session.run(["confidence"], {"pixels": pixels[start : start + BATCH]})[0]
        labels += [about["labels"][place] for place in confidence.argmax(axis=1)]
    return labels


if __name__ == "__main__":
    main()
