"""The report of a regression run: one offline page, built from the run's files and its images."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np

from vitrail.contract import Classifier
from vitrail.data.table import Source
from vitrail.errors import RunError
from vitrail.files import write_text
from vitrail.pages import render_template
from vitrail.report.chart import scatter_chart
from vitrail.report.overlay import render_overlay
from vitrail.report.percent import percent, percent_range
from vitrail.report.run import LARGE_SIDE, NUM_ERRORS, REPORT, read_files, training_charts
from vitrail.report.thumbnails import Thumbnails
from vitrail.run.artefact import load
from vitrail.run.number_predictions import NumberRow, read_number_rows
from vitrail.run.predictions import PREDICTIONS

MAX_DOTS = 1500
NUM_BANDS = 5


def write_number_report(path: Path, source: Source, *, model: Classifier | None = None) -> None:
    """Write report.html of a regression run; an existing page stays until the new one is complete."""
    run = read_files(path, kind="regression")
    rows = [row for row in read_number_rows(path / PREDICTIONS) if row.split == run["split"]]
    errors = sorted(rows, key=lambda row: (-row.error, row.path))[:NUM_ERRORS]
    thumbnails = Thumbnails(source, [row.path for row in errors])
    model = model if model is not None else load(path)
    step = max(1, len(rows) // MAX_DOTS)
    page = render_template(
        "vitrail.report",
        "number_run.html",
        **run,
        charts=training_charts([("", run["metrics"])]),
        scatter=scatter_chart(
            [(row.true, row.predicted) for row in rows[::step]],
            half_width=run["calibration"].half_width,
            name=run["facts"]["target"],
        ),
        bands=error_bands(rows),
        errors=[
            (
                row,
                thumbnails.thumbnail(row.path, LARGE_SIDE),
                render_overlay(model, thumbnails.content(row.path), 0, LARGE_SIDE),
            )
            for row in errors
        ],
        percent=percent,
        percent_range=percent_range,
    )
    write_text(page, path / REPORT, RunError)


def error_bands(rows: list[NumberRow]) -> list[tuple[str, int, float, float | None]]:
    """For ranges of true numbers with equally many images: their number, mean absolute error, and coverage."""
    if not rows:
        return []
    edges = np.unique(np.quantile([row.true for row in rows], np.linspace(0, 1, NUM_BANDS + 1)))
    bands = []
    for number, (low, high) in enumerate(pairwise(edges)):
        last = number == len(edges) - 2
        inside = [row for row in rows if low <= row.true < high or (last and row.true == high)]
        if not inside:
            continue
        held = [row.low <= row.true <= row.high for row in inside if row.low is not None and row.high is not None]
        mean = float(np.mean([row.error for row in inside]))
        bands.append((f"{low:.4g} to {high:.4g}", len(inside), mean, float(np.mean(held)) if held else None))
    return bands
