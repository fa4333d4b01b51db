"""The report of a pretraining run: one offline page with curves and reconstructions."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from vitrail.data.reader import Reader
from vitrail.data.table import Source, Table
from vitrail.errors import DataError, RunError
from vitrail.files import write_text
from vitrail.inspection.reconstruction import Reconstruction, as_image, open_pretrained, reconstruct
from vitrail.pages import render_template
from vitrail.report.percent import percent
from vitrail.report.run import REPORT, read_files, training_charts
from vitrail.report.thumbnails import jpeg_data_url
from vitrail.run.artefact import PRETRAINING

NUM_IMAGES, SIDE, QUALITY = 8, 192, 90


def write_pretraining_report(path: Path, source: Source) -> None:
    """Write report.html of a pretraining run; an existing page stays until the new one is complete."""
    run = read_files(path, kind=PRETRAINING)
    page = render_template(
        "vitrail.report",
        "pretraining.html",
        **run,
        charts=training_charts([("", run["metrics"])]),
        images=[_as_urls(each) for each in _reconstructions(path, source)],
        percent=percent,
    )
    write_text(page, path / REPORT, RunError)


def _reconstructions(path: Path, source: Source) -> list[Reconstruction]:
    """Reconstructions of images from all over the source; unreadable ones are left out."""
    pretrained = open_pretrained(path)
    reader = Reader(pretrained.model.preprocess)
    step = max(1, len(source) // NUM_IMAGES)
    items = (source[row] for row in range(0, len(source), step)) if isinstance(source, Table) else iter(source)
    found = []
    for number, item in enumerate(islice(items, NUM_IMAGES)):
        try:
            found.append(reconstruct(pretrained, reader.read(item), seed=number))
        except DataError:
            continue
    return found


def _as_urls(found: Reconstruction) -> tuple[str, str, str]:
    masked, predicted, original = (
        jpeg_data_url(as_image(each, SIDE), quality=QUALITY) for each in (found.masked, found.predicted, found.original)
    )
    return masked, predicted, original
