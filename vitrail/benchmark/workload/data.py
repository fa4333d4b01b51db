"""Images per second from files to batches of 224 px: Vitrail, timm's loader, and a plain Pillow loop."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitrail.benchmark.compare import BenchResult, Contender, hardware, take_turns
from vitrail.data.cache import PixelCache
from vitrail.data.find import open_data
from vitrail.data.prepare.image import image_loader
from vitrail.data.reader import form
from vitrail.data.table import Table
from vitrail.data.transform import Preprocess
from vitrail.errors import DataError

BATCH_SIZE = 64
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PREPROCESS = Preprocess(size=(224, 224), crop=0.9, mean=MEAN, std=STD)
RESIZED_SIDE = 248
CACHE_GB = 8.0
PILLOW = "pillow loop"


def run(
    data: str | None, *, workers: int = 2, rounds: int = 5, progress: Callable[[int, int], None] | None = None
) -> BenchResult:
    """Measure on a folder of class folders; each contender reads all images once per round."""
    if data is None:
        raise DataError("this workload reads a folder of images.", got="no DATA.", hint="a folder of class folders.")
    source = open_data(data)
    root = source.root
    if not isinstance(source, Table) or root is None or not (root / source.names[0]).is_file():
        raise DataError("this workload reads a folder of images.", got=f"{data}.", hint="a folder of class folders.")
    absent = []
    paths = [root / name for name in source.names]
    with tempfile.TemporaryDirectory(prefix="vitrail-bench-") as folder:
        cache = PixelCache(form(PREPROCESS, None), limit_gb=CACHE_GB, folder=Path(folder))
        plain = image_loader(source, PREPROCESS, batch_size=BATCH_SIZE, workers=workers)
        cached = image_loader(source, PREPROCESS, batch_size=BATCH_SIZE, workers=workers, cache=cache)
        contenders: dict[str, Contender] = {
            "vitrail": lambda: _speed(batch.fields["image"] for batch in plain.epoch()),
            "vitrail, warm cache": lambda: _speed(batch.fields["image"] for batch in cached.epoch()),
            PILLOW: lambda: _speed(_pillow_batches(paths)),
        }
        try:
            loader = _timm_loader(root, workers)
            _speed(images for images, _ in loader)
            contenders["timm"] = lambda: _speed(images for images, _ in loader)
        except Exception as error:  # noqa: BLE001 - timm is missing, or fails in some way
            absent.append(f"timm: {error}")
        for contender in contenders.values():  # fill the cache, start workers, load files into memory
            contender()
        reference = "timm" if "timm" in contenders else PILLOW
        rows = take_turns(contenders, reference=reference, unit="images/s", rounds=rounds, progress=progress)
        cache.close()
    setting = {"images": len(source), "size": 224, "batch": BATCH_SIZE, "workers": workers, "rounds": rounds, "seed": 0}
    return BenchResult("data", setting, hardware(), reference, rows, tuple(absent))


def _speed(batches: Iterable[Any]) -> float:
    start, num = time.perf_counter(), 0
    for batch in batches:
        num += len(batch)
    return num / (time.perf_counter() - start)


def _pillow_batches(paths: list[Path]) -> Iterator[torch.Tensor]:
    """A loop as one writes it by hand: open, convert, resize, crop, normalise, stack."""
    mean, std = (np.array(values, dtype=np.float32) for values in (MEAN, STD))
    for start in range(0, len(paths), BATCH_SIZE):
        batch = []
        for path in paths[start : start + BATCH_SIZE]:
            with Image.open(path) as file:
                image = file.convert("RGB")
            scale = RESIZED_SIDE / min(image.size)
            width, height = (max(RESIZED_SIDE, int(side * scale)) for side in image.size)
            image = image.resize((width, height), Image.Resampling.BICUBIC)
            left, top = (width - 224) // 2, (height - 224) // 2
            pixels = np.asarray(image.crop((left, top, left + 224, top + 224)), dtype=np.float32) / 255
            batch.append(torch.from_numpy(((pixels - mean) / std).transpose(2, 0, 1)))
        yield torch.stack(batch)


def _timm_loader(root: Path, workers: int) -> Any:
    """timm's loader with its evaluation transform, and as many processes as Vitrail has threads."""
    # torchvision has no CPU build for this torch: its two missing operators are declared, never called.
    library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from timm.data import ImageDataset, create_loader

    return create_loader(
        ImageDataset(str(root)),
        input_size=(3, 224, 224),
        batch_size=BATCH_SIZE,
        use_prefetcher=False,
        interpolation="bicubic",
        mean=MEAN,
        std=STD,
        crop_pct=PREPROCESS.crop,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
