"""The contact sheet of a check: one self-contained page with every finding and its images, if any."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from vitrail.data.check import KINDS, Report
from vitrail.data.table import Content, Finding, Source, Table
from vitrail.errors import DataError, VitrailError
from vitrail.files import write_text
from vitrail.pages import render_template
from vitrail.report.thumbnails import thumbnail

SIDE = 160  # pixels per side of a thumbnail
MAX_CARDS = 48  # findings shown per kind; the rest are counted


class Card(NamedTuple):
    """A finding with the names and data URLs of its images; an empty URL for an image that cannot be shown."""

    finding: Finding
    thumbnails: list[tuple[str, str]]


def write_sheet(report: Report, source: Source, path: Path) -> None:
    """Write the page atomically: an old page stays until the new one is complete."""
    rows = {name: index for index, name in enumerate(source.names)} if isinstance(source, Table) else {}
    sections = []
    for kind, meaning in KINDS.items():
        found = [finding for finding in report.findings if finding.kind == kind]
        if found:
            cards = [Card(each, _thumbnails(each, source, rows)) for each in found[:MAX_CARDS]]
            sections.append((kind, meaning, cards, len(found) - len(cards)))
    page = render_template("vitrail.report", "sheet.html", report=report, sections=sections, side=SIDE)
    write_text(page, path, DataError)


def _thumbnails(finding: Finding, source: Source, rows: dict[str, int]) -> list[tuple[str, str]]:
    """The names and data URLs of the images that a finding is about."""
    thumbnails = []
    for name in (finding.path, finding.other):
        if name in rows and isinstance(source, Table):
            url = _thumbnail(source, rows[name])
            if url or finding.other:
                thumbnails.append((name, url))
    return thumbnails


def _thumbnail(source: Table, index: int) -> str:
    content: Content = b""
    with suppress(VitrailError, OSError):
        content = source.content(index)
    return thumbnail(content, SIDE, modality=source.modalities[0])
