"""What more data, time or compute would bring: a law fitted to a ladder of sizes, checked on its largest, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.metric.interval import Interval
from vitrail.metric.law import Law, UndecidedLawError, fit_law
from vitrail.percent import percent, percent_range

NUM_SIZES = 6  # up to half of the images, evenly spaced on a logarithmic scale
MAX_RANGE = 32  # between the smallest size and half of the images
MIN_PER_CLASS = 2  # images at the smallest size
MIN_LADDER = NUM_SIZES + 1  # sizes; fewer distinct ones cannot be fitted and checked
FACTORS = (2, 4)  # of the largest size, in the forecast
Unit = Literal["images", "steps", "seconds", "FLOPs"]
"""What a size counts: training images, training steps, seconds of training, FLOPs of a model for an image."""
TWICE: dict[Unit, str] = {
    "images": "the images",
    "steps": "the steps",
    "seconds": "the time",
    "FLOPs": "the FLOPs",
}


class Point(NamedTuple):
    """The mean accuracy of all runs of size `n`, and its standard error."""

    n: int
    value: float
    error: float | None
    """None with a single run."""
    runs: tuple[float, ...]
    name: str = ""
    """Of the model, if the size is a model's."""


class Expected(NamedTuple):
    """The accuracy to expect at size `n`, with its 95 % interval."""

    n: int
    value: float
    interval: Interval


class Check(NamedTuple):
    """What the law fitted on up to half of the largest size predicted for it, and what was measured."""

    n: int
    predicted: float
    interval: Interval
    measured: float

    @property
    def inside(self) -> bool:
        """Whether the interval holds what was measured."""
        return self.interval[0] <= self.measured <= self.interval[1]


class Scaling(NamedTuple):
    """How the accuracy grows with the number of training images, or with another size."""

    points: tuple[Point, ...]
    law: dict[str, float] | None
    """E = a + b (n + c)^-d for the error E, 1 - accuracy; None if the points cannot tell."""
    intervals: dict[str, Interval] | None
    forecast: tuple[Expected, ...]
    check: Check | None
    verdict: str
    curve: tuple[Expected, ...]
    """The law and its interval from the smallest size to the largest forecast, to be drawn."""
    num_test: int
    unit: Unit = "images"

    def document(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return {
            "unit": self.unit,
            "points": [{**each._asdict(), "runs": list(each.runs)} for each in self.points],
            "law": self.law,
            "intervals": None if self.intervals is None else {key: list(each) for key, each in self.intervals.items()},
            "forecast": [{**each._asdict(), "interval": list(each.interval)} for each in self.forecast],
            "check": None
            if self.check is None
            else {**self.check._asdict(), "interval": list(self.check.interval), "inside": self.check.inside},
            "verdict": self.verdict,
            "curve": [{**each._asdict(), "interval": list(each.interval)} for each in self.curve],
            "num_test": self.num_test,
        }


def read_scaling(document: dict[str, Any]) -> Scaling:
    """The inverse of `Scaling.document`."""
    check, fields = document["check"], {key: document[key] for key in ("law", "verdict", "num_test")}
    fields["unit"] = document.get("unit", "images")  # of earlier versions, nothing else
    intervals = document["intervals"]
    return Scaling(
        points=tuple(
            Point(each["n"], each["value"], each["error"], tuple(each["runs"]), each.get("name", ""))
            for each in document["points"]
        ),
        forecast=tuple(map(_read_expected, document["forecast"])),
        curve=tuple(map(_read_expected, document["curve"])),
        intervals=None if intervals is None else {name: _read_interval(each) for name, each in intervals.items()},
        check=None
        if check is None
        else Check(check["n"], check["predicted"], _read_interval(check["interval"]), check["measured"]),
        **fields,
    )


def _read_expected(each: dict[str, Any]) -> Expected:
    return Expected(each["n"], each["value"], _read_interval(each["interval"]))


def _read_interval(values: list[float]) -> Interval:
    low, high = values
    return low, high


def ladder_sizes(num_images: int, num_classes: int) -> list[int]:
    """The sizes of the subsets: six up to half of the images, one between, and all of them."""
    half = num_images // 2
    lowest = max(MIN_PER_CLASS * num_classes, half // MAX_RANGE)
    if 2 * lowest > half:
        return [num_images]
    below = np.geomspace(lowest, half, NUM_SIZES).round().astype(int).tolist()
    return sorted({*below, round(half * 2**0.5), num_images})


def nested_order(labels: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """An order whose beginnings are stratified subsets, each within the next: class after class in turns."""
    shuffled = rng.permutation(len(labels))
    position = np.empty(len(labels))
    for label in np.unique(labels):
        members = shuffled[labels[shuffled] == label]
        # A random offset per class, so that no class is always the first to get one more image.
        position[members] = (np.arange(len(members)) + rng.random()) / len(members)
    return np.argsort(position, kind="stable")


def describe_scaling(
    accuracies: Mapping[int, Sequence[float]],
    num_test: int,
    *,
    unit: Unit = "images",
    names: Mapping[int, str] | None = None,
) -> Scaling:
    """Fit the law to the accuracies of all runs by size, check it, and say what more would bring."""
    sizes = sorted(accuracies)
    points = tuple(_point(size, accuracies[size], (names or {}).get(size, "")) for size in sizes)
    try:
        law = _fit(points, num_test)
    except UndecidedLawError as reason:
        verdict = f"The law cannot tell: {reason}."
        return Scaling(points, None, None, (), None, verdict, (), num_test, unit)
    largest = points[-1]
    forecast = tuple(_expect(law, factor * largest.n) for factor in FACTORS)
    grid = np.unique(np.geomspace(sizes[0], forecast[-1].n, 40).round().astype(int)).tolist()
    curve = tuple(_expect(law, size, num_runs=None) for size in grid)
    check = _check(points, num_test)
    twice = forecast[0]
    verdict = (
        f"With twice {TWICE[unit]} ({twice.n:,}) {percent(twice.value)} ({percent_range(twice.interval)}), "
        f"with {largest.n:,} {percent(largest.value)}."
    )
    return Scaling(points, law.constants, law.intervals, forecast, check, verdict, curve, num_test, unit)


def compare_ladders(images: Scaling, times: Scaling) -> str:
    """Whether twice the images or twice the time would bring more, in words."""
    if not images.forecast or not times.forecast:
        return "More labels or more time: the laws cannot tell which would bring more."
    labels, time = images.forecast[0].interval, times.forecast[0].interval
    if labels[0] > time[1]:
        return "Labels are worth more than time here."
    if time[0] > labels[1]:
        return "Time is worth more than labels here."
    return "More labels or more time: the intervals overlap, so either may bring more."


def describe_check(result: Scaling) -> str:
    """The check in words; nothing without a law."""
    what, check = TWICE[result.unit], result.check
    if result.law is None:
        return ""
    if check is None:
        return f"Not checked: half of {what} are too few to fit a law."
    outcome = "" if check.inside else "; outside the interval, so do not rely on the forecast"
    return (
        f"Checked: from half of {what}, the law predicts {percent(check.predicted)} "
        f"({percent_range(check.interval)}) for all of them; measured {percent(check.measured)}{outcome}."
    )


def _point(size: int, runs: Sequence[float], name: str) -> Point:
    num = len(runs)
    error = float(np.std(runs, ddof=1)) / num**0.5 if num > 1 else None
    return Point(size, float(np.mean(runs)), error, tuple(map(float, runs)), name)


def _fit(points: Sequence[Point], num_test: int) -> Law:
    errors = [[1 - run for run in each.runs] for each in points]
    return fit_law([each.n for each in points], errors, resolution=1 / num_test)


def _expect(law: Law, size: int, *, num_runs: int | None = 1) -> Expected:
    """The forecast, in accuracies."""
    forecast = law.forecast(size, num_runs=num_runs)
    low, high = forecast.interval
    return Expected(size, 1 - forecast.value, (max(0.0, 1 - high), min(1.0, 1 - low)))


def _check(points: Sequence[Point], num_test: int) -> Check | None:
    """Fit on up to half of the largest size, and predict that."""
    largest = points[-1]
    try:
        law = _fit([each for each in points if 2 * each.n <= largest.n], num_test)
    except UndecidedLawError:
        return None
    expected = _expect(law, largest.n, num_runs=1)
    return Check(largest.n, expected.value, expected.interval, largest.value)
