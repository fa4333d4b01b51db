"""A figure with the numbers that it was drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from vitrail.errors import InspectionError
from vitrail.inspection.sample import Sample


class Drawn(NamedTuple):
    """A figure of matplotlib, and a table."""

    figure: Any
    titles: tuple[str, ...]
    rows: Sequence[tuple[object, ...]]


def require_sample(sample: Sample | None, what: str) -> Sample:
    """Refuse to draw without pictures what needs them."""
    if sample is None:
        raise InspectionError(f"{what} cannot be seen without pictures.", got="no DATA.", hint="a folder of pictures.")
    return sample
