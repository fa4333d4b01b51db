"""Contenders measured in turns within one run, so that noise on the machine affects all of them alike."""

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
"""Runs once and returns its speed; higher is better."""


class Row(NamedTuple):
    """A contender's median over the rounds, and its ratio to the reference in each round."""

    name: str
    value: float
    unit: str
    ratio: float
    ratio_low: float
    ratio_high: float
    values: tuple[float, ...]


class BenchResult(NamedTuple):
    """The result of a benchmark; ratios are relative to the row `reference`."""

    workload: str
    setting: dict[str, Any]
    hardware: dict[str, Any]
    reference: str
    rows: tuple[Row, ...]
    absent: tuple[str, ...]
    """Contenders that could not run, and why."""
    choices: tuple[Choice, ...] = ()
    """What Vitrail therefore does on this machine."""


def take_turns(
    contenders: Mapping[str, Contender],
    *,
    reference: str,
    unit: str,
    rounds: int,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Row, ...]:
    """Run each contender once per round, in an order that rotates from round to round."""
    names = list(contenders)
    values: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for position in range(len(names)):
            name = names[(position + turn) % len(names)]
            values[name].append(contenders[name]())
            if progress is not None:
                progress(turn * len(names) + position + 1, rounds * len(names))
    rows = []
    for name in names:
        ratios = [one / other for one, other in zip(values[name], values[reference], strict=True)]
        median = statistics.median(values[name])
        rows.append(Row(name, median, unit, statistics.median(ratios), min(ratios), max(ratios), tuple(values[name])))
    return tuple(rows)


def hardware() -> dict[str, Any]:
    """Describe the machine and the library versions of a measurement."""
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
