"""Fractions as percentages, in one style everywhere: 86.2 %."""

from __future__ import annotations

from collections.abc import Sequence


def percent(fraction: float | None, digits: int = 1, *, signed: bool = False) -> str:
    """A percentage for a terminal or a Markdown file; a dash for None."""
    return "-" if fraction is None else f"{100 * fraction:{'+' if signed else ''}.{digits}f} %"


def percent_range(interval: Sequence[float], digits: int = 1, *, signed: bool = False) -> str:
    """An interval of percentages: 83.5 to 88.5 %."""
    low, high = interval
    return f"{percent(low, digits, signed=signed).removesuffix(' %')} to {percent(high, digits, signed=signed)}"
