"""A backbone on many data sets beside the paper's results, as an offline page."""

from __future__ import annotations

from typing import Any

from vitrail.pages import render_template
from vitrail.report.percent import percent, percent_range


def render_transfer(result: Any, groups: dict[str, str]) -> str:
    """The page of a transfer; `groups` are the titles of the groups of rows."""
    sections = [
        (title, [row for row in result.rows if row.group == group])
        for group, title in groups.items()
        if any(row.group == group for row in result.rows)
    ]
    return render_template(
        "vitrail.report",
        "transfer.html",
        result=result,
        sections=sections,
        percent=percent,
        percent_range=percent_range,
    )
