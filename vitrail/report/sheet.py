"""The contact sheet of a check: one offline page with every finding, and its pictures where there are any."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from vitrail.data.check import KINDS, Report
from vitrail.data.table import Content, Finding, Source, Table
from vitrail.errors import DataError, VitrailError
from vitrail.files import write_text
from vitrail.pages import fill_template
from vitrail.report.thumbnails import thumbnail

SIDE = 160  # pixels of a thumbnail
MAX_CARDS = 48  # findings of a kind with pictures; the rest are named


class Card(NamedTuple):
    """A finding with its pictures as data addresses; nothing where there is no picture to show."""

    finding: Finding
    thumbnails: list[tuple[str, str]]


def write_sheet(report: Report, source: Source, path: Path) -> None:
    """Write the page; a page that was there before stays until the new one is whole."""
    places = {name: index for index, name in enumerate(source.names)} if isinstance(source, Table) else {}
    sections = []
    for kind, meaning in KINDS.items():
        found = [finding for finding in report.findings if finding.kind == kind]
        if found:
            cards = [Card(each, _thumbnails(each, source, places)) for each in found[:MAX_CARDS]]
            sections.append((kind, meaning, cards, len(found) - len(cards)))
    page = fill_template("vitrail.report", "sheet.html", report=report, sections=sections, side=SIDE)
    write_text(page, path, DataError)


def _thumbnails(finding: Finding, source: Source, places: dict[str, int]) -> list[tuple[str, str]]:
    """The names and small pictures that a finding is about."""
    made = []
    for name in (finding.path, finding.other):
        if name in places and isinstance(source, Table):
            address = _thumbnail(source, places[name])
            if address or finding.other:
                made.append((name, address))
    return made


def _thumbnail(source: Table, index: int) -> str:
    content: Content = b""
    with suppress(VitrailError, OSError):
        content = source.content(index)
    return thumbnail(content, SIDE)
