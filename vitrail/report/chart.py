"""Small charts as SVG, drawn for light and dark pages alike: colours are the page's own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from vitrail.metric.calibration import NUM_BINS, Bin

WIDTH, HEIGHT = 520, 260
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 38
MAX_POINTS = 400  # of a line; more cannot be told apart
NUM_COLOURS = 6


class Line(NamedTuple):
    """A curve with a name, which is drawn in the colour of its number."""

    name: str
    points: Sequence[tuple[float, float]]
    dots: bool = False


def lines(curves: Sequence[Line], *, across: str, up: str, percent: bool = False) -> Markup | None:
    """Curves over each other, with a legend; None where there is nothing to draw."""
    curves = [line._replace(points=_fewer(line.points)) for line in curves if line.points]
    points = [point for line in curves for point in line.points]
    if not points:
        return None
    right = max(x for x, _ in points) or 1.0
    low, high = min(y for _, y in points), max(y for _, y in points)
    ticks = _ticks(low, high, most=1.0 if percent else None)
    low, high = min(low, ticks[0]), max(high, ticks[-1])
    plot = _Plot(right, low, high)
    parts = [plot.frame(across, up, [(tick, _told(tick, percent)) for tick in ticks])]
    for number, line in enumerate(curves):
        path = " ".join(f"{plot.x(x):.1f},{plot.y(y):.1f}" for x, y in line.points)
        colour = f"c{number % NUM_COLOURS}"
        parts.append(Markup('<polyline class="line {}" points="{}"/>').format(colour, path))
        if line.dots:
            parts += [
                Markup('<circle class="dot {}" cx="{}" cy="{}" r="3"><title>{}</title></circle>').format(
                    colour, f"{plot.x(x):.1f}", f"{plot.y(y):.1f}", f"{line.name}: {_told(y, percent)} at {x:,.0f}"
                )
                for x, y in line.points
            ]
    told = "; ".join(f"{line.name} ends at {_told(line.points[-1][1], percent)}" for line in curves)
    return _svg(parts, f"{up} over {across}: {told}.")


def reliability_chart(bins: Sequence[Bin], name: str) -> Markup:
    """Accuracy over confidence: bars that should end on the diagonal, as wide as the bins, as dark as they are full."""
    plot = _Plot(1.0, 0.0, 1.0)
    fifths = [place / 5 for place in range(6)]
    parts = [plot.frame("confidence", "accuracy", [(tick, f"{tick:.0%}") for tick in fifths], percent_across=True)]
    most = max((each.n for each in bins), default=1)
    for each in bins:
        begin = min(NUM_BINS - 1, int(each.confidence * NUM_BINS)) / NUM_BINS
        parts.append(
            Markup(
                '<rect class="bin" x="{}" y="{}" width="{}" height="{}" opacity="{}"><title>{}</title></rect>'
            ).format(
                f"{plot.x(begin) + 1:.1f}",
                f"{plot.y(each.accuracy):.1f}",
                f"{plot.x(1 / NUM_BINS) - plot.x(0) - 2:.1f}",
                f"{plot.y(0) - plot.y(each.accuracy):.1f}",
                f"{0.35 + 0.65 * math.sqrt(each.n / most):.2f}",
                f"{each.n} pictures: {each.confidence:.0%} sure, {each.accuracy:.0%} right",
            )
        )
    ends = [f"{value:.1f}" for value in (plot.x(0), plot.y(0), plot.x(1), plot.y(1))]
    parts.append(Markup('<line class="ideal" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(*ends))
    return _svg(parts, f"{name}: accuracy over confidence. Bars should end on the diagonal.")


class _Plot:
    """Where numbers lie on the chart."""

    def __init__(self, right: float, low: float, high: float) -> None:
        self.right, self.low, self.high = right, low, high if high > low else low + 1.0

    def x(self, value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * value / self.right

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - self.low) / (self.high - self.low)

    def frame(
        self, across: str, up: str, ticks: Sequence[tuple[float, str]], *, percent_across: bool = False
    ) -> Markup:
        """Axes with their names, and a line at each tick."""
        row = Markup('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/><text x="{}" y="{}" class="end">{}</text>')
        made = [
            row.format(LEFT, WIDTH - RIGHT, *[f"{self.y(value):.1f}"] * 2, LEFT - 6, f"{self.y(value) + 4:.1f}", told)
            for value, told in ticks
        ]
        below = [place * self.right / 4 for place in range(5)]
        made += [
            Markup('<text x="{}" y="{}" class="middle">{}</text>').format(
                f"{self.x(value):.1f}", HEIGHT - 20, f"{value:.0%}" if percent_across else f"{value:,.0f}"
            )
            for value in below
        ]
        made.append(
            Markup('<text x="{}" y="{}" class="middle">{}</text>').format((LEFT + WIDTH) / 2, HEIGHT - 4, across)
        )
        middle = (HEIGHT - BOTTOM) / 2
        turned = Markup('<text class="middle" transform="translate(12 {}) rotate(-90)">{}</text>')
        return Markup("").join([*made, turned.format(middle, up)])


def _svg(parts: Sequence[Markup], told: str) -> Markup:
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, HEIGHT, told, Markup("").join(parts)
    )


def _fewer(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    step = max(1, len(points) // MAX_POINTS)
    kept = list(points[::step])
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]


def _ticks(low: float, high: float, *, most: float | None) -> list[float]:
    """About five round numbers that hold all values between them."""
    rough = max(high - low, 1e-6) / 4
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.floor(low / step), math.ceil(high / step)
    ticks = [number * step for number in range(first, last + 1)]
    return [tick for tick in ticks if most is None or tick <= most + 1e-9]


def _told(value: float, percent: bool) -> str:
    return f"{value:.3g}" if not percent else f"{value:.1%}".replace(".0%", "%")
