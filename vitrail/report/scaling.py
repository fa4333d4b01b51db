"""What more data, time or compute would bring, as an offline page and as a section of a run's report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vitrail.metric.scaling import Scaling, Unit, describe_check
from vitrail.pages import render_template
from vitrail.report.chart import Span, forecast_chart
from vitrail.report.percent import percent, percent_range

SIZES: dict[Unit, str] = {
    "images": "training images",
    "steps": "training steps",
    "seconds": "training time (s)",
    "FLOPs": "FLOPs per image",
}
TITLES: dict[Unit, str] = {"images": "More images", "steps": "More time", "seconds": "More time", "FLOPs": "Models"}


def render_scaling(ladders: Sequence[Scaling], *, comparison: str, title: str, recipe: str) -> str:
    """The page of `vitrail scaling`."""
    return render_template(
        "vitrail.report",
        "scaling.html",
        title=title,
        recipe=recipe,
        comparison=comparison,
        num_test=ladders[0].num_test,
        headline=ladders[0].forecast[0].value if ladders[0].forecast else None,
        percent=percent,
        percent_range=percent_range,
        ladders=[scaling_values(each) for each in ladders],
    )


def scaling_values(result: Scaling) -> dict[str, Any]:
    """What the page and the section show of one ladder."""
    size = SIZES[result.unit]
    chart = forecast_chart(
        [(each.n, each.value) for each in result.points],
        [Span(each.n, each.value, *each.interval) for each in result.curve],
        [Span(each.n, each.value, *each.interval) for each in result.forecast],
        x_label=size,
        y_label="accuracy",
    )
    return {
        "scaling": result,
        "scaling_chart": chart,
        "scaling_size": size,
        "scaling_title": TITLES[result.unit],
        "check_text": describe_check(result),
    }
