"""A figure with the numbers behind it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib import rc_context

from vitrail.errors import InspectionError
from vitrail.inspection.sample import Sample


class Drawing(NamedTuple):
    """A matplotlib figure and the table of its numbers."""

    figure: Any
    columns: tuple[str, ...]
    rows: Sequence[tuple[object, ...]]


def save_figure(figure: Any, file: Any, kind: str, dpi: int) -> None:
    """Write a figure as "png" or "svg", with the same bytes each time."""
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    options: dict[str, Any] = {"pil_kwargs": {"compress_level": 4}} if kind == "png" else {}  # three times as fast
    with warnings.catch_warnings(), rc_context({"svg.hashsalt": "vitrail"}):
        # Labels may contain glyphs that matplotlib's font lacks.
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        figure.savefig(file, format=kind, dpi=dpi, metadata=metadata, **options)


def require_sample(sample: Sample | None, what: str) -> Sample:
    """Return the sample, or fail if there is none."""
    if sample is None:
        raise InspectionError(f"{what} cannot be computed without images.", got="no DATA.", hint="a folder of images.")
    return sample
