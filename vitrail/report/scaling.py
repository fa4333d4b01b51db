"""What more data would bring, as an offline page and as a section of a run's report."""

from __future__ import annotations

from typing import Any

from vitrail.metric.scaling import Scaling, describe_check
from vitrail.pages import render_template
from vitrail.report.chart import Span, forecast_chart
from vitrail.report.percent import percent, percent_range


def render_scaling(result: Scaling, *, title: str, recipe: str) -> str:
    """The page of `vitrail scaling`."""
    return render_template(
        "vitrail.report",
        "scaling.html",
        title=title,
        recipe=recipe,
        percent=percent,
        percent_range=percent_range,
        **scaling_values(result),
    )


def scaling_values(result: Scaling) -> dict[str, Any]:
    """What the page and the section show."""
    chart = forecast_chart(
        [(each.n, each.value) for each in result.points],
        [Span(each.n, each.value, *each.interval) for each in result.curve],
        [Span(each.n, each.value, *each.interval) for each in result.forecast],
        x_label="training images",
        y_label="accuracy",
    )
    return {
        "scaling": result,
        "scaling_chart": chart,
        "check_text": describe_check(result.check) if result.law else "",
    }
