"""What the reports of all runs on text have in common."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

from vitrail.data.text.display import visible
from vitrail.errors import RunError
from vitrail.files import write_text
from vitrail.pages import render_template
from vitrail.report.percent import percent, percent_range
from vitrail.report.run import REPORT, training_charts


def write_text_report(path: Path, template: str, run: dict[str, Any], **values: Any) -> None:
    """Write report.html of a run on text; an existing page stays until the new one is complete."""
    page = render_template(
        "vitrail.report",
        template,
        **run,
        split_name="test" if run["split"] == "test" else "validation",
        charts=training_charts([("", run["metrics"])], per_token=True),
        visible=partial(visible, mark_spaces=False),
        exp=math.exp,
        percent=percent,
        percent_range=percent_range,
        **values,
    )
    write_text(page, path / REPORT, RunError)
