"""A backbone on many data sets beside the paper's results, as an offline page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vitrail.pages import render_template
from vitrail.report.percent import percent, percent_range


def render_transfer(result: Any, groups: dict[str, str]) -> str:
    """The page of a transfer; `groups` are the titles of the groups of rows."""
    sections = []
    for group, title in groups.items():
        rows = [row for row in result.rows if row.group == group]
        if rows:
            sections.append((title, rows, _used_columns(rows, len(result.columns))))
    return render_template(
        "vitrail.report",
        "transfer.html",
        result=result,
        sections=sections,
        mean_columns=_used_columns(result.means, len(result.columns)),
        percent=percent,
        percent_range=percent_range,
    )


def _used_columns(rows: Sequence[Any], num: int) -> list[int]:
    """The columns of the paper that have a score in any of the rows."""
    return [column for column in range(num) if any(row.paper[column] is not None for row in rows)]
