"""The proof of an export: what it says to the user's pictures beside PyTorch, and how fast, on this machine."""

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

from vitrail.exports.images import BATCH, Pictures, Progress
from vitrail.metric.interval import Interval, wilson_interval
from vitrail.metric.paired import compare_hits
from vitrail.metric.ranking import mean_average_precision

SECONDS = 4.0  # for each contender and batch
ROUNDS = 5
CALLS = 50  # a round, which tell enough of a small model
THROUGHPUT_BATCH = 8


@dataclass(frozen=True, kw_only=True)
class Faith:
    """How true an export is to its model."""

    n: int
    agreement: float
    """The share of pictures whose likeliest label is the same."""
    max_logit_diff: float
    top1_before: float | None
    """Accuracy; of several labels a picture mean average precision; None where labels are not known."""
    top1_after: float | None
    interval: Interval | None
    """95 % of the accuracy after."""
    drop_interval: Interval | None
    """95 % of what was lost, by pictures that only one of the two gets right."""

    @property
    def drop(self) -> float:
        """What was lost; where labels are not known, each label that changed counts as lost."""
        if self.top1_before is None or self.top1_after is None:
            return 1 - self.agreement
        return self.top1_before - self.top1_after


def logits_of(
    model: Any, pixels: NDArray[np.uint8], progress: Progress | None = None, *, batch: int = BATCH
) -> Float[Tensor, "n K"]:
    """A model's answers to pixels, whether it is PyTorch's or an engine's."""
    rows = []
    with torch.inference_mode():
        for start in range(0, len(pixels), batch):
            rows.append(model(model.preprocess.normalise(pixels[start : start + batch])).float())
            if progress is not None:
                progress(min(start + batch, len(pixels)), len(pixels))
    return torch.cat(rows)


def faith_of(before: Float[Tensor, "n K"], after: Float[Tensor, "n K"], pictures: Pictures) -> Faith:
    """Compare two models' answers to the same pictures."""
    same = before.argmax(dim=1) == after.argmax(dim=1)
    truth = pictures.truth
    scores: tuple[Any, Any, Any, Any] = (None, None, None, None)
    if truth is not None and truth.ndim > 1:
        first, second = (mean_average_precision(each.numpy(), truth.bool().numpy()) for each in (before, after))
        scores = (first, second, None, None)
    elif truth is not None:
        hits = [(each.argmax(dim=1) == truth).numpy() for each in (before, after)]
        low, high = compare_hits(hits[0], hits[1]).interval
        interval = wilson_interval(float(hits[1].sum()), len(hits[1]))
        scores = (float(hits[0].mean()), float(hits[1].mean()), interval, (-high, -low))
    gap = (before - after).abs().max().item()
    return Faith(
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
    """How fast a contender is, on this machine, beside the others."""

    latency_ms: float
    """Of one picture."""
    throughput: float
    """Pictures a second in batches."""


def speeds(
    contenders: Mapping[str, Any],
    pixels: NDArray[np.uint8],
    *,
    seconds: float = SECONDS,
    progress: Progress | None = None,
) -> dict[str, Speed]:
    """Measure models in turns, one picture and batches, so that a noisy machine is noisy for all of them."""
    each = {}
    for done, num in enumerate((1, THROUGHPUT_BATCH)):
        if progress is not None:
            progress(done, 2)
        batch = pixels[np.arange(num) % len(pixels)]
        calls = {name: _call(model, batch) for name, model in contenders.items()}
        each[num] = _in_turns(calls, seconds)
    return {
        name: Speed(latency_ms=1000 * each[1][name], throughput=THROUGHPUT_BATCH / each[THROUGHPUT_BATCH][name])
        for name in contenders
    }


def _call(model: Any, batch: NDArray[np.uint8]) -> Callable[[], Any]:
    """From pixels to logits, scaling included, which engines do inside."""

    def call() -> Any:
        with torch.inference_mode():
            return model(model.preprocess.normalise(batch))

    return call


def _in_turns(calls: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """The median time of each call over all rounds."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
        call()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            until = time.perf_counter() + seconds / ROUNDS
            for _ in range(CALLS):
                start = time.perf_counter()
                call()
                end = time.perf_counter()
                times[name].append(end - start)
                if end > until:
                    break
    return {name: statistics.median(values) for name, values in times.items()}
