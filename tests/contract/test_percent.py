"""Percentages have one style, with a space; on pages it does not break."""

from __future__ import annotations

import pytest

from vitrail.percent import percent, percent_range
from vitrail.report import percent as on_pages


@pytest.mark.parametrize(
    ("fraction", "digits", "expected"),
    [(0.862, 1, "86.2 %"), (1.0, 0, "100 %"), (0.12345, 2, "12.35 %"), (None, 1, "-")],
)
def test_percent(fraction: float | None, digits: int, expected: str) -> None:
    assert percent(fraction, digits) == expected
    page = expected.replace(" ", "\u00a0").replace("-", "\u2013")
    assert on_pages.percent(fraction, digits) == page


def test_ranges_and_signs() -> None:
    assert percent_range((0.835, 0.885)) == "83.5 to 88.5 %"
    assert percent_range((-0.01, 0.02), 2, signed=True) == "-1.00 to +2.00 %"
    assert percent(0.012, 2, signed=True) == "+1.20 %"
    assert on_pages.percent_range((0.835, 0.885)) == "83.5 to 88.5\u00a0%"
