"""Contenders measured side by side: in turns within one run, so that a noisy machine is noisy for all of them."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any, NamedTuple

from vitrail.machine import Choice, num_cores, processor

PACKAGES = ("vitrail", "torch", "numpy", "pillow", "simplejpeg", "lmdb", "timm", "torchvision")
Contender = Callable[[], float]
"""Runs once and tells its figure, the more the better."""


class Row(NamedTuple):
    """A contender's median over the rounds, and how it compares with the reference, round by round."""

    name: str
    value: float
    unit: str
    ratio: float
    ratio_low: float
    ratio_high: float
    values: tuple[float, ...]


class Bench(NamedTuple):
    """The outcome of a benchmark; ratios are to the row called `reference`."""

    workload: str
    setting: dict[str, Any]
    hardware: dict[str, Any]
    reference: str
    rows: tuple[Row, ...]
    absent: tuple[str, ...]
    """What could not take part, and why."""
    choices: tuple[Choice, ...] = ()
    """What is done on this machine because of it."""


def take_turns(
    contenders: Mapping[str, Contender],
    *,
    reference: str,
    unit: str,
    rounds: int,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Row, ...]:
    """Each contender once a round, in an order that moves on by one each round."""
    names = list(contenders)
    values: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for place in range(len(names)):
            name = names[(place + turn) % len(names)]
            values[name].append(contenders[name]())
            if progress is not None:
                progress(turn * len(names) + place + 1, rounds * len(names))
    rows = []
    for name in names:
        ratios = [one / other for one, other in zip(values[name], values[reference], strict=True)]
        middle = statistics.median(values[name])
        rows.append(Row(name, middle, unit, statistics.median(ratios), min(ratios), max(ratios), tuple(values[name])))
    return tuple(rows)


def hardware() -> dict[str, Any]:
    """The machine and the versions that a figure was measured with."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "cpu": processor(),
        "cores": num_cores(),
        "memory_gib": _memory(),
        "python": platform.python_version(),
        **versions,
    }


def _memory() -> int | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    except (ValueError, OSError, AttributeError):
        return None
