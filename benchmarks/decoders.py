"""Which library decodes and resizes images fastest, on one core, in turns: the evidence for docs/dependencies.md.

    VITRAIL_DATA=DIR python benchmarks/decoders.py > benchmarks/decoders.json

OpenCV takes part if installed. DIR contains imagenet/ and photos/ (see CONTRIBUTING.md).
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent.parent))
from vitrail.benchmark.compare import hardware, take_turns
from vitrail.data.resize import resize

DATA = Path(os.environ["VITRAIL_DATA"])
ROUNDS = 7


def sets() -> dict[str, list[bytes]]:
    """Encoded images of three sizes."""
    with zipfile.ZipFile(next((DATA / "imagenet").glob("*.zip"))) as archive:
        names = [name for name in sorted(archive.namelist()) if name.lower().endswith(".jpeg")][:200]
        small = [archive.read(name) for name in names]
    middle = [path.read_bytes() for path in sorted((DATA / "photos").glob("*.jpg"))]
    large = []
    for data in middle:
        file = io.BytesIO()
        Image.open(io.BytesIO(data)).convert("RGB").resize((2000, 1500)).save(file, "JPEG", quality=90)
        large.append(file.getvalue())
    return {"256 px": small, "500 px": middle * 10, "2,000 px": large * 2}


def by_pillow(data: bytes) -> Any:
    """Pillow, pixels as an array."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def decoders() -> dict[str, Callable[[bytes], Any]]:
    """The decoders to compare."""
    found: dict[str, Callable[[bytes], Any]] = {"pillow": by_pillow, "simplejpeg": simplejpeg.decode_jpeg}
    try:
        import cv2
    except ImportError:
        return found
    cv2.setNumThreads(1)
    return {**found, "opencv": lambda data: cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)}


def speed(work: Callable[[Any], Any], items: list[Any]) -> Callable[[], float]:
    """Return a contender: images per second of one run over all of them."""

    def run() -> float:
        start = time.perf_counter()
        for item in items:
            work(item)
        return len(items) / (time.perf_counter() - start)

    return run


def main() -> None:
    """Decode, then resize to 248 px on the short side, for each image size and library."""
    torch.set_num_threads(1)
    result: dict[str, Any] = {"hardware": hardware(), "rounds": ROUNDS, "decode": {}, "resize": {}}
    for name, encoded in sets().items():
        pixels = [by_pillow(data).copy() for data in encoded]
        sizes = [tuple(round(side * 248 / min(each.shape[:2])) for side in each.shape[:2]) for each in pixels]
        items = list(zip(pixels, sizes, strict=True))
        images = [(Image.fromarray(each), size[::-1]) for each, size in items]
        contenders = {key: speed(work, encoded) for key, work in decoders().items()}
        resizers = {
            "pillow": speed(lambda item: item[0].resize(item[1], Image.Resampling.BICUBIC), images),
            "torch": speed(lambda item: resize(item[0], *item[1], "bicubic"), items),
        }
        for kind, rivals in (("decode", contenders), ("resize", resizers)):
            rows = take_turns(rivals, reference="pillow", unit="images/s", rounds=ROUNDS)
            result[kind][name] = [{**row._asdict(), "milliseconds": 1000 / row.value} for row in rows]
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
