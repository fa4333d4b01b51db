"""A figure with the numbers that it was drawn from."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib import rc_context

from vitrail.errors import InspectionError
from vitrail.inspection.sample import Sample


class Drawing(NamedTuple):
    """A figure of matplotlib, and a table."""

    figure: Any
    titles: tuple[str, ...]
    rows: Sequence[tuple[object, ...]]


def save_figure(figure: Any, file: Any, kind: str, dots: int) -> None:
    """Write a figure as "png" or "svg", the same bytes each time."""
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    told: dict[str, Any] = {"pil_kwargs": {"compress_level": 4}} if kind == "png" else {}  # in a third of the time
    with warnings.catch_warnings(), rc_context({"svg.hashsalt": "vitrail"}):
        # A label may have letters that matplotlib's own font has not.
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        figure.savefig(file, format=kind, dpi=dots, metadata=metadata, **told)


def require_sample(sample: Sample | None, what: str) -> Sample:
    """Refuse to draw without pictures what needs them."""
    if sample is None:
        raise InspectionError(f"{what} cannot be seen without pictures.", got="no DATA.", hint="a folder of pictures.")
    return sample
