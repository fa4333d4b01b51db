"""The pictures of an export: some to learn ranges from, others to prove it on, and never the same ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.find import open_data
from vitrail.data.loader import Loader
from vitrail.data.table import Source, Table
from vitrail.data.transform import RawPixels
from vitrail.errors import DataError, ExportError
from vitrail.run.golden import NUM_GOLDEN, read_golden
from vitrail.run.label_mapping import class_numbers, truth_of

Progress = Callable[[int, int], None]
CALIBRATION = 200
BATCH = 32


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Pixels as the model's preparation leaves them."""

    judged: NDArray[np.uint8]
    truth: Tensor | None
    """Their classes, if they are known."""
    calibration: NDArray[np.uint8]
    origin: str
    """What the proof stands on, in words."""


def gather(
    model: Any,
    asked: str,
    data: str | Path | None,
    *,
    calibration: str | Path | None = None,
    limit: int,
    ranges: bool = True,
    progress: Progress | None = None,
) -> Pictures:
    """The pictures of `data`, at most `limit` of them to be judged; without data the run's goldens, or random ones.

    With `ranges` there are others to learn them from: those of `calibration`; else of the train split; else up to half
    of the pictures, which are then not judged.
    """
    few = None if data is not None else _few(model, asked)
    source = None if data is None else open_data(data, progress=progress)
    split = next((name for name in ("test", "val") if source and name in source.split_names), None)
    judged = source if source is None or split is None else source.split(split)
    learned: Source | None = None
    if ranges and calibration is not None:
        found = open_data(calibration, progress=progress)
        learned = found.split("train") if "train" in found.split_names else found
    elif ranges and source is not None and split is not None and "train" in source.split_names:
        learned = source.split("train")
    elif ranges and judged is not None:
        learned, judged = _halves(judged)
    taught = np.zeros((0, *model.preprocess.size, model.preprocess.channels), dtype=np.uint8)
    if learned is not None:
        taught = _pixels(model, _drawn(learned, CALIBRATION, 1), CALIBRATION, progress)[0]
    if few is not None:
        return replace(few, calibration=taught)
    assert judged is not None
    judged = _drawn(judged, limit, 0)
    numbers = class_numbers(model, judged, asked)
    pixels, labels = _pixels(model, judged, limit, progress)
    seen = {each.tobytes() for each in pixels}  # a picture may lie in both under another name
    taught = taught[[each.tobytes() not in seen for each in taught]]
    return Pictures(
        judged=pixels,
        truth=truth_of(model, numbers, judged, labels),
        calibration=taught,
        origin=f"{len(pixels):,} pictures of {Path(str(data)).name}" + (f" ({split})" if split else ""),
    )


def _drawn(source: Source, num: int, seed: int) -> Source:
    """So many pictures drawn at random, in their order; of shards all, for they are read from front to back."""
    if not isinstance(source, Table) or len(source) <= num:
        return source
    return source.only(sorted(np.random.default_rng(seed).permutation(len(source))[:num].tolist()))


def _halves(source: Source) -> tuple[Source, Source]:
    if not isinstance(source, Table):
        raise ExportError(
            "shards without a train split cannot be parted.", got="one split.", hint="--calibration DATA."
        )
    order = np.random.default_rng(0).permutation(len(source)).tolist()
    num = min(CALIBRATION, len(source) // 2)
    return source.only(sorted(order[:num])), source.only(sorted(order[num:]))


def _pixels(model: Any, source: Source, limit: int, progress: Progress | None) -> tuple[NDArray[np.uint8], Tensor]:
    """The pictures of a source that can be read, no more than so many."""
    preprocess = RawPixels.parse(model.preprocess.model_dump(mode="json"))
    images: list[NDArray[np.uint8]] = []
    labels: list[Tensor] = []
    num = 0
    for batch in Loader(source=source, preprocess=preprocess, batch_size=BATCH, policy="skip").epoch():
        images.append(batch.images.permute(0, 2, 3, 1).numpy())
        labels.append(batch.labels)
        num += len(batch.images)
        if progress is not None:
            progress(min(num, limit), min(limit, len(source)))
        if num >= limit:  # shards may hold millions
            break
    if not num:
        raise DataError("no picture could be read.", got=f"{len(source)} that cannot.", hint="vitrail check.")
    return np.concatenate(images)[:limit], torch.cat(labels)[:limit]


def _few(model: Any, asked: str) -> Pictures:
    golden = read_golden(Path(asked)) if Path(asked).is_dir() else None
    size: Sequence[int] = model.preprocess.size
    if golden is not None and golden["pixels"].shape[1:3] == torch.Size(size):
        pixels, origin = golden["pixels"].numpy(), f"the run's {len(golden['pixels'])} golden pictures alone"
    else:
        random = np.random.default_rng(0)
        pixels = random.integers(0, 256, (NUM_GOLDEN, *size, model.preprocess.channels), dtype=np.uint8)
        origin = f"{NUM_GOLDEN} pictures of noise, for want of others"
    return Pictures(judged=pixels, truth=None, calibration=pixels[:0], origin=origin)
