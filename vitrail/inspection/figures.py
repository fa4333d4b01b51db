"""The paper's figures of one model: PNG for slides, SVG for print, CSV for whoever wants the numbers, and one page."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vitrail import plug
from vitrail.errors import InspectionError
from vitrail.files import replacing, write_text
from vitrail.inspection.drawing import Drawing, save_figure
from vitrail.inspection.sample import Sample
from vitrail.pages import fill_template

FIGURES = "vitrail.inspection.figure"
DOTS = 120  # an inch
logger = logging.getLogger("vitrail")
Progress = Callable[[int, int], None]


def write_figures(
    model: Any,
    sample: Sample | None,
    folder: Path,
    *,
    names: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Draw the figures that this model and these pictures have what it takes for; say which are left out, and why."""
    entries = {name: plug.load(FIGURES, name) for name in (names or plug.entries(FIGURES))}
    written, shown = [], []
    model.eval()
    for number, (name, entry) in enumerate(entries.items(), start=1):
        try:
            drawn: Drawing = entry.draw(model, sample)
        except InspectionError as error:
            if names:
                raise
            logger.warning("The figure %s is left out: %s", name, error.wrong)
            continue
        folder.mkdir(parents=True, exist_ok=True)
        for kind in ("png", "svg"):
            with replacing(folder / f"{name}.{kind}", InspectionError) as part:
                save_figure(drawn.figure, part, kind, DOTS)
            written.append(folder / f"{name}.{kind}")
        write_text(_table(drawn), folder / f"{name}.csv", InspectionError)
        written.append(folder / f"{name}.csv")
        shown.append((name, entry.TITLE, entry.SAYS))
        if progress is not None:
            progress(number, len(entries))
    if not shown:
        raise InspectionError(
            "this model has none of the figures.",
            got=f"a {type(model).__name__} and no DATA.",
            hint="DATA, some pictures.",
        )
    page = fill_template(
        "vitrail.inspection",
        "figures.html",
        name=getattr(model, "name", "") or type(model).__name__,
        figures=shown,
        pictures=0 if sample is None else len(sample),
    )
    write_text(page, folder / "figures.html", InspectionError)
    return [*written, folder / "figures.html"]


def _table(drawn: Drawing) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(drawn.titles)
    writer.writerows(drawn.rows)
    return text.getvalue()
