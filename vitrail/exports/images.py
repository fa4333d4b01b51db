"""The images of an export: some calibrate int8, others prove the export; never the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.contract import Classifier
from vitrail.data.find import open_data
from vitrail.data.prepare.image import image_loader
from vitrail.data.table import Source, Table
from vitrail.data.transform import RawPixels
from vitrail.errors import DataError, ExportError
from vitrail.exports.budget import Budget, Progress
from vitrail.run.golden import NUM_GOLDEN, read_golden
from vitrail.run.label_mapping import map_classes, map_labels

NUM_CALIBRATION = 200
MIN_IMAGES = 200  # a time limit cuts the proof to no fewer images
IMAGE_FRACTION = 0.5  # of the time limit, for reading and evaluating the images; the rest is for building and timing
BATCH_SIZE = 32


@dataclass(frozen=True, kw_only=True)
class ExportImages:
    """Pixels as the model's preprocessing returns them."""

    proof_pixels: NDArray[np.uint8]
    labels: Tensor | None
    """The true classes of the proof images, if known."""
    calibration_pixels: NDArray[np.uint8]
    origin: str
    """A description of the proof images."""


@dataclass(frozen=True, kw_only=True)
class ImageBudget:
    """The time limit and what each image costs after it was read: one pass through every model."""

    budget: Budget
    seconds_per_image: float

    def num_affordable(self, started: float, num_read: int) -> int:
        """How many images fit, if the rest are read as fast as the first `num_read` since `started`."""
        now = self.budget.elapsed()
        seconds_each = (now - started) / num_read + self.seconds_per_image
        available = self.budget.left() + now - started
        return max(MIN_IMAGES, int(IMAGE_FRACTION * available / max(seconds_each, 1e-9)))


def load_images(
    model: Classifier,
    model_name: str,
    data: str | Path | None,
    *,
    calibration: str | Path | None = None,
    limit: int,
    calibrate: bool = True,
    time_limit: ImageBudget | None = None,
    progress: Progress | None = None,
) -> ExportImages:
    """Read at most `limit` proof images from `data`; without data, use the run's golden images or random noise.

    With `calibrate`, read other images to calibrate on: from `calibration`; else from the train split; else up to half
    of the images, which are then not used for the proof. Under a time limit the proof may use fewer images.
    """
    without_data = _without_data(model, model_name) if data is None else None
    source = None if data is None else open_data(data, progress=progress)
    split = next((name for name in ("test", "val") if source and name in source.split_names), None)
    proof_source = source if source is None or split is None else source.split(split)
    calibration_source: Source | None = None
    if calibrate and calibration is not None:
        opened = open_data(calibration, progress=progress)
        calibration_source = opened.split("train") if "train" in opened.split_names else opened
    elif calibrate and source is not None and split is not None and "train" in source.split_names:
        calibration_source = source.split("train")
    elif calibrate and proof_source is not None:
        calibration_source, proof_source = _split_off_calibration(proof_source)
    calibration_pixels = np.zeros((0, *model.preprocess.size, model.preprocess.channels), dtype=np.uint8)
    if calibration_source is not None:
        calibration_source = _sample(calibration_source, NUM_CALIBRATION, seed=1)
        calibration_pixels = _read_pixels(model, calibration_source, NUM_CALIBRATION, progress)[0]
    if without_data is not None:
        return replace(without_data, calibration_pixels=calibration_pixels)
    assert proof_source is not None
    proof_source = _sample(proof_source, limit, seed=0, shuffled=time_limit is not None)
    indices = map_classes(model, proof_source, model_name)
    pixels, labels = _read_pixels(model, proof_source, limit, progress, time_limit)
    proof_bytes = {each.tobytes() for each in pixels}  # the same image may be in both under another name
    calibration_pixels = calibration_pixels[[each.tobytes() not in proof_bytes for each in calibration_pixels]]
    wanted = min(limit, len(proof_source))
    cut = time_limit is not None and len(pixels) < wanted
    return ExportImages(
        proof_pixels=pixels,
        labels=map_labels(model, indices, proof_source, labels),
        calibration_pixels=calibration_pixels,
        origin=f"{len(pixels):,}{f' of {wanted:,}' if cut else ''} images of {Path(str(data)).name}"
        + (f" ({split})" if split else ""),
    )


def _sample(source: Source, num: int, *, seed: int, shuffled: bool = False) -> Source:
    """A random sample of `num` images, in source order or shuffled; all of a stream, which is read front to back."""
    if not isinstance(source, Table) or (len(source) <= num and not shuffled):
        return source
    rows = np.random.default_rng(seed).permutation(len(source))[:num].tolist()
    return source.only(rows if shuffled else sorted(rows))  # any part of a shuffled sample is a fair sample


def _split_off_calibration(source: Source) -> tuple[Source, Source]:
    if not isinstance(source, Table):
        raise ExportError(
            "shards without a train split cannot be divided into images for calibration and for verification.",
            got="one split.",
            hint="--calibration DATA.",
        )
    order = np.random.default_rng(0).permutation(len(source)).tolist()
    num = min(NUM_CALIBRATION, len(source) // 2)
    return source.only(sorted(order[:num])), source.only(sorted(order[num:]))


def _read_pixels(
    model: Classifier, source: Source, limit: int, progress: Progress | None, time_limit: ImageBudget | None = None
) -> tuple[NDArray[np.uint8], Tensor]:
    """At most `limit` readable images of a source, or as many as the time limit allows."""
    preprocess = RawPixels.parse(model.preprocess.model_dump(mode="json"))
    started = time_limit.budget.elapsed() if time_limit is not None else 0.0
    images: list[NDArray[np.uint8]] = []
    labels: list[Tensor] = []
    num = 0
    for batch in image_loader(source, preprocess, batch_size=BATCH_SIZE, policy="skip").epoch():
        images.append(batch.fields["image"].permute(0, 2, 3, 1).numpy())
        labels.append(batch.fields["label"])
        num += batch.num
        if time_limit is not None and num >= MIN_IMAGES:
            limit, time_limit = min(limit, time_limit.num_affordable(started, num)), None  # decided once
        if progress is not None:
            progress(min(num, limit), min(limit, len(source)))
        if num >= limit:  # shards may hold millions
            break
    if not num:
        raise DataError("no image could be read.", got=f"{len(source)} unreadable images.", hint="vitrail check.")
    return np.concatenate(images)[:limit], torch.cat(labels)[:limit]


def _without_data(model: Classifier, model_name: str) -> ExportImages:
    golden = read_golden(Path(model_name)) if Path(model_name).is_dir() else None
    size: Sequence[int] = model.preprocess.size
    if golden is not None and golden["pixels"].shape[1:3] == torch.Size(size):
        pixels, origin = golden["pixels"].numpy(), f"the run's {len(golden['pixels'])} golden images only"
    else:
        rng = np.random.default_rng(0)
        pixels = rng.integers(0, 256, (NUM_GOLDEN, *size, model.preprocess.channels), dtype=np.uint8)
        origin = f"{NUM_GOLDEN} images of random noise, without --data"
    return ExportImages(proof_pixels=pixels, labels=None, calibration_pixels=pixels[:0], origin=origin)
