"""Fractions as percentages on pages, with a no-break space: 86.2 %."""

from __future__ import annotations

from collections.abc import Sequence


def percent(fraction: float | None, digits: int = 1) -> str:
    """A percentage; a dash for None."""
    return "\N{EN DASH}" if fraction is None else f"{100 * fraction:.{digits}f}\N{NO-BREAK SPACE}%"


def percent_range(interval: Sequence[float], digits: int = 1) -> str:
    """An interval of percentages: 83.5 to 88.5 %."""
    low, high = interval
    return f"{100 * low:.{digits}f} to {percent(high, digits)}"
