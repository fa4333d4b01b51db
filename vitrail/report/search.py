"""What was found for a query, as an offline page."""

from __future__ import annotations

from typing import Any

from vitrail.data.aligned import TEXT
from vitrail.pages import render_template
from vitrail.report.thumbnails import thumbnail

SIDE = 176


def render_search(result: Any, content: Any) -> str:
    """The page of a search; `content` is that of the query."""
    return render_template(
        "vitrail.report",
        "search.html",
        result=result,
        query=_show(result.query_modality, content),
        found=[(each, _show(result.modality, each.content)) for each in result.found],
    )


def _show(modality: str, content: Any) -> str:
    """A thumbnail; empty for a text."""
    return "" if modality == TEXT else thumbnail(content, SIDE, modality=modality)
