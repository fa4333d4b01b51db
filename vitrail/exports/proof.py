"""The proof of an export: how its outputs compare with PyTorch's on the user's images, and how fast it runs here."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from vitrail.engine.exported import ImageModel
from vitrail.exports.budget import Progress
from vitrail.exports.images import BATCH_SIZE, ExportImages
from vitrail.metric.interval import Interval, wilson_interval
from vitrail.metric.paired import compare_hits
from vitrail.metric.ranking import mean_average_precision

SECONDS = 4.0  # per model and batch size
MIN_SECONDS = 2.0  # the same under a time limit, at least
ROUNDS = 5
MAX_CALLS = 50  # per round; enough for a small model
WARMUP_CALLS = 2
THROUGHPUT_BATCH = 8


@dataclass(frozen=True, kw_only=True)
class Fidelity:
    """How closely an export matches its model."""

    n: int
    agreement: float
    """The fraction of images with the same top label."""
    max_logit_diff: float
    top1_before: float | None
    """Accuracy, or mean average precision if multi-label; None without labels."""
    top1_after: float | None
    interval: Interval | None
    """95 % interval of the accuracy after."""
    drop_interval: Interval | None
    """95 % interval of the drop, from the images that only one of the two classifies correctly."""

    @property
    def drop(self) -> float:
        """The accuracy lost; without labels, the fraction of images whose top label changed."""
        if self.top1_before is None or self.top1_after is None:
            return 1 - self.agreement
        return self.top1_before - self.top1_after


def compute_logits(
    model: ImageModel, pixels: NDArray[np.uint8], progress: Progress | None = None, *, batch_size: int = BATCH_SIZE
) -> Float[Tensor, "n K"]:
    """The logits of a PyTorch model or an export."""
    rows = []
    with torch.inference_mode():
        for start in range(0, len(pixels), batch_size):
            rows.append(model(model.preprocess.normalise(pixels[start : start + batch_size])).float())
            if progress is not None:
                progress(min(start + batch_size, len(pixels)), len(pixels))
    return torch.cat(rows)


def measure_fidelity(before: Float[Tensor, "n K"], after: Float[Tensor, "n K"], images: ExportImages) -> Fidelity:
    """Compare the logits of two models on the same images."""
    same = before.argmax(dim=1) == after.argmax(dim=1)
    labels = images.labels
    scores: tuple[Any, Any, Any, Any] = (None, None, None, None)
    if labels is not None and labels.ndim > 1:
        first, second = (mean_average_precision(each.numpy(), labels.bool().numpy()) for each in (before, after))
        scores = (first, second, None, None)
    elif labels is not None:
        hits = [(each.argmax(dim=1) == labels).numpy() for each in (before, after)]
        low, high = compare_hits(hits[0], hits[1]).interval
        interval = wilson_interval(float(hits[1].sum()), len(hits[1]))
        scores = (float(hits[0].mean()), float(hits[1].mean()), interval, (-high, -low))
    gap = (before - after).abs().max().item()
    return Fidelity(
        n=len(before),
        agreement=same.double().mean().item(),
        max_logit_diff=gap if np.isfinite(gap) else float("inf"),
        top1_before=scores[0],
        top1_after=scores[1],
        interval=scores[2],
        drop_interval=scores[3],
    )


@dataclass(frozen=True, kw_only=True)
class Speed:
    """How fast a model runs on this machine."""

    latency_ms: float
    """For one image."""
    throughput: float
    """Images per second in batches of 8."""


def measure_speeds(
    models: Mapping[str, ImageModel],
    pixels: NDArray[np.uint8],
    *,
    seconds: float = SECONDS,
    progress: Progress | None = None,
) -> dict[str, Speed]:
    """Time models in turns, on one image and on batches, so that noise on the machine affects all of them alike."""
    medians = {}
    for done, batch_size in enumerate((1, THROUGHPUT_BATCH)):
        if progress is not None:
            progress(done, 2)
        batch = pixels[np.arange(batch_size) % len(pixels)]
        calls = {name: _call(model, batch) for name, model in models.items()}
        medians[batch_size] = _time_in_turns(calls, seconds)
    return {
        name: Speed(latency_ms=1000 * medians[1][name], throughput=THROUGHPUT_BATCH / medians[THROUGHPUT_BATCH][name])
        for name in models
    }


def speed_cost(seconds: float, seconds_per_image: float) -> float:
    """About how many seconds `measure_speeds` takes per model."""
    least = (WARMUP_CALLS + ROUNDS) * (1 + THROUGHPUT_BATCH) * seconds_per_image  # one call per round
    return max(2 * seconds, least)


def _call(model: ImageModel, batch: NDArray[np.uint8]) -> Callable[[], Any]:
    """From pixels to logits, including normalisation, which exports do inside."""

    def call() -> Any:
        with torch.inference_mode():
            return model(model.preprocess.normalise(batch))

    return call


def _time_in_turns(calls: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """The median time of each call over all rounds."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(WARMUP_CALLS):
            call()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            until = time.perf_counter() + seconds / ROUNDS
            for _ in range(MAX_CALLS):
                start = time.perf_counter()
                call()
                end = time.perf_counter()
                times[name].append(end - start)
                if end > until:
                    break
    return {name: statistics.median(values) for name, values in times.items()}
