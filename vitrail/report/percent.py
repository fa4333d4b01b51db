"""Fractions as percentages on pages, with a no-break space: 86.2 %."""

from __future__ import annotations

from collections.abc import Sequence

from vitrail import percent as plain

NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"


def percent(fraction: float | None, digits: int = 1) -> str:
    """A percentage; a dash for None."""
    return "\N{EN DASH}" if fraction is None else plain.percent(fraction, digits).replace(" ", NO_BREAK_SPACE)


def percent_range(interval: Sequence[float], digits: int = 1) -> str:
    """An interval of percentages: 83.5 to 88.5 %."""
    return plain.percent_range(interval, digits).replace(" %", f"{NO_BREAK_SPACE}%")
