"""The paper's figures for one model: PNG for slides, SVG for print, CSV with the numbers, and one page."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from vitrail import plug
from vitrail.contract import Classifier
from vitrail.errors import InspectionError
from vitrail.files import atomic_write, write_text
from vitrail.inspection.drawing import Drawing, save_figure
from vitrail.inspection.sample import Sample
from vitrail.pages import render_template

FIGURES = "vitrail.inspection.figure"
DPI = 120
logger = logging.getLogger("vitrail")
Progress = Callable[[int, int], None]


def write_figures(
    model: Classifier,
    sample: Sample | None,
    folder: Path,
    *,
    names: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Write the named figures, or all that this model and sample allow; those that are skipped are logged."""
    entries = {name: plug.load(FIGURES, name) for name in (names or plug.entries(FIGURES))}
    written, figures = [], []
    model.eval()
    for number, (name, entry) in enumerate(entries.items(), start=1):
        try:
            drawing: Drawing = entry.draw(model, sample)
        except InspectionError as error:
            if names:
                raise
            logger.warning("Skipped figure %s: %s", name, error.wrong)
            continue
        folder.mkdir(parents=True, exist_ok=True)
        for kind in ("png", "svg"):
            with atomic_write(folder / f"{name}.{kind}", InspectionError) as part:
                save_figure(drawing.figure, part, kind, DPI)
            written.append(folder / f"{name}.{kind}")
        write_text(_to_csv(drawing), folder / f"{name}.csv", InspectionError)
        written.append(folder / f"{name}.csv")
        figures.append((name, entry.TITLE, entry.DESCRIPTION))
        if progress is not None:
            progress(number, len(entries))
    if not figures:
        raise InspectionError(
            "none of the figures can be drawn for this model.",
            got=f"a {type(model).__name__} and no DATA.",
            hint="adding DATA, a folder of images.",
        )
    page = render_template(
        "vitrail.inspection",
        "figures.html",
        name=model.name or type(model).__name__,
        figures=figures,
        num_images=0 if sample is None else len(sample),
    )
    write_text(page, folder / "figures.html", InspectionError)
    return [*written, folder / "figures.html"]


def _to_csv(drawing: Drawing) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(drawing.columns)
    writer.writerows(drawing.rows)
    return text.getvalue()
