"""Small SVG charts that take their colours from the page, so they suit light and dark schemes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from vitrail.metric.calibration import NUM_BINS, Bin
from vitrail.report.percent import percent

WIDTH, HEIGHT = 520, 260
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 12, 38
SECOND_RIGHT = 58  # with a second axis
MAX_POINTS = 400  # per line; more would not be visible
NUM_COLOURS = 6
MAX_DOUBLINGS = 8  # labels on a logarithmic axis


class Line(NamedTuple):
    """A named curve; its position in the chart decides its colour."""

    name: str
    points: Sequence[tuple[float, float]]
    dots: bool = False


class Span(NamedTuple):
    """A value at x, and its interval."""

    x: float
    y: float
    low: float
    high: float


class SecondAxis(NamedTuple):
    """The same values in another unit, on the right: its label, and how many of it the first unit is."""

    label: str
    factor: float


def line_chart(
    lines: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    as_percent: bool = False,
    second_axis: SecondAxis | None = None,
) -> Markup | None:
    """Plot lines in one chart; None without points."""
    lines = [line._replace(points=_thin_out(line.points)) for line in lines if line.points]
    points = [point for line in lines for point in line.points]
    if not points:
        return None
    right = max(x for x, _ in points) or 1.0
    low, high = min(y for _, y in points), max(y for _, y in points)
    ticks = _ticks(low, high, maximum=1.0 if as_percent else None)
    low, high = min(low, ticks[0]), max(high, ticks[-1])
    plot = _Plot(right, low, high, margin=RIGHT if second_axis is None else SECOND_RIGHT)
    parts = [plot.frame(x_label, y_label, [(tick, _format(tick, as_percent)) for tick in ticks])]
    if second_axis is not None:
        parts.append(plot.second_axis(second_axis))
    for index, line in enumerate(lines):
        path = " ".join(f"{plot.x(x):.1f},{plot.y(y):.1f}" for x, y in line.points)
        colour = f"c{index % NUM_COLOURS}"
        parts.append(Markup('<polyline class="line {}" points="{}"/>').format(colour, path))
        if line.dots:
            parts += [
                Markup('<circle class="dot {}" cx="{}" cy="{}" r="3"><title>{}</title></circle>').format(
                    colour,
                    f"{plot.x(x):.1f}",
                    f"{plot.y(y):.1f}",
                    f"{line.name}: {_describe(y, as_percent, second_axis)} at {x_label} {x:,.0f}",
                )
                for x, y in line.points
            ]
    last = ((line.name, line.points[-1][1]) for line in lines)
    ends = "; ".join(f"{name} ends at {_describe(y, as_percent, second_axis)}" for name, y in last)
    return _svg(parts, f"{y_label} by {x_label}: {ends}.")


def forecast_chart(
    points: Sequence[tuple[float, float]],
    curve: Sequence[Span],
    forecast: Sequence[Span],
    *,
    x_label: str,
    y_label: str,
) -> Markup:
    """Measured fractions by size, a law with its interval as a band, and forecasts; sizes are on a logarithmic axis."""
    sizes = sorted({x for x, _ in points} | {each.x for each in forecast})
    values = [y for _, y in points] + [end for each in (*curve, *forecast) for end in (each.low, each.high)]
    ticks = _ticks(min(values), max(values), maximum=1.0)
    plot = _Plot(math.log(sizes[-1]), min(ticks[0], *values), max(ticks[-1], *values), left=math.log(sizes[0]))
    doublings = [sizes[-1] / 2**power for power in range(int(math.log2(sizes[-1] / sizes[0])) + 1)][:MAX_DOUBLINGS]
    named = [(math.log(size), f"{size:,.0f}") for size in doublings]
    parts = [plot.frame(x_label, y_label, [(tick, _format(tick, True)) for tick in ticks], x_ticks=named)]

    def place(x: float, y: float) -> str:
        return f"{plot.x(math.log(x)):.1f},{plot.y(y):.1f}"

    if curve:
        edges = [place(each.x, each.high) for each in curve] + [place(each.x, each.low) for each in reversed(curve)]
        parts.append(Markup('<polygon class="band" points="{}"/>').format(" ".join(edges)))
        line = " ".join(place(each.x, each.y) for each in curve)
        parts.append(Markup('<polyline class="line c0" points="{}"/>').format(line))
    dot = Markup('<circle class="dot {}" cx="{}" cy="{}" r="4"><title>{}</title></circle>')
    bar = Markup('<polyline class="line c1" points="{} {}"/>')
    for x, y in points:
        parts.append(dot.format("c0", *place(x, y).split(","), f"{x:,.0f}: {percent(y)} measured"))
    for each in forecast:
        parts.append(bar.format(place(each.x, each.low), place(each.x, each.high)))
        text = f"{each.x:,.0f}: {percent(each.y)} expected, {percent(each.low)} to {percent(each.high)}"
        parts.append(dot.format("c1", *place(each.x, each.y).split(","), text))
    expected = "".join(f"; {percent(each.y)} expected at {each.x:,.0f}" for each in forecast)
    return _svg(parts, f"{y_label} by {x_label}: {percent(points[-1][1])} at {points[-1][0]:,.0f}{expected}.")


def reliability_chart(bins: Sequence[Bin], name: str) -> Markup:
    """Accuracy by confidence: bars that should end on the diagonal, darker for bins with more images."""
    plot = _Plot(1.0, 0.0, 1.0)
    fifths = [index / 5 for index in range(6)]
    parts = [plot.frame("confidence", "accuracy", [(tick, percent(tick, 0)) for tick in fifths], x_as_percent=True)]
    largest = max((each.n for each in bins), default=1)
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
                f"{0.35 + 0.65 * math.sqrt(each.n / largest):.2f}",
                f"{each.n:,} images: {percent(each.confidence, 0)} confident, {percent(each.accuracy, 0)} correct",
            )
        )
    ends = [f"{value:.1f}" for value in (plot.x(0), plot.y(0), plot.x(1), plot.y(1))]
    parts.append(Markup('<line class="ideal" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(*ends))
    return _svg(parts, f"{name}: accuracy by confidence. Bars should end on the diagonal.")


def scatter_chart(points: Sequence[tuple[float, float]], *, half_width: float | None, name: str) -> Markup | None:
    """Predicted numbers by true ones: dots near the diagonal, most of them within the range around it."""
    if not points:
        return None
    numbers = [number for point in points for number in point]
    ticks = _ticks(min(numbers), max(numbers), maximum=None)
    low, high = min(*numbers, ticks[0]), max(*numbers, ticks[-1])
    plot = _Plot(high, low, high, left=low)
    named = [(tick, _format(tick, False)) for tick in ticks]
    parts = [plot.frame(f"true {name}", f"predicted {name}", named, x_ticks=named)]
    shifts = (0.0,) if half_width is None else (0.0, -half_width, half_width)
    for shift in shifts:
        begin, end = max(low, low - shift), min(high, high - shift)
        ends = [plot.x(begin), plot.y(begin + shift), plot.x(end), plot.y(end + shift)]
        line = Markup('<line class="{}" x1="{}" y1="{}" x2="{}" y2="{}"/>')
        parts.append(line.format("grid" if shift else "ideal", *[f"{each:.1f}" for each in ends]))
    parts += [
        Markup('<circle class="dot c0" cx="{}" cy="{}" r="2.5" opacity="0.5"><title>{}</title></circle>').format(
            f"{plot.x(true):.1f}", f"{plot.y(predicted):.1f}", f"true {true:.4g}, predicted {predicted:.4g}"
        )
        for true, predicted in points
    ]
    return _svg(parts, f"Predicted {name} by true {name}, {len(points):,} images. Dots should lie on the diagonal.")


class _Plot:
    """Maps values to positions in the chart."""

    def __init__(self, right: float, low: float, high: float, *, left: float = 0.0, margin: int = RIGHT) -> None:
        self.left, self.right = left, right if right > left else left + 1.0
        self.low, self.high = low, high if high > low else low + 1.0
        self.end = WIDTH - margin

    def x(self, value: float) -> float:
        return LEFT + (self.end - LEFT) * (value - self.left) / (self.right - self.left)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - self.low) / (self.high - self.low)

    def frame(
        self,
        x_label: str,
        y_label: str,
        ticks: Sequence[tuple[float, str]],
        *,
        x_ticks: Sequence[tuple[float, str]] | None = None,
        x_as_percent: bool = False,
    ) -> Markup:
        """Labelled axes with a grid line at each tick; by default, the x axis is divided into quarters."""
        row = Markup('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/><text x="{}" y="{}" class="end">{}</text>')
        parts = [
            row.format(LEFT, self.end, *[f"{self.y(value):.1f}"] * 2, LEFT - 6, f"{self.y(value) + 4:.1f}", text)
            for value, text in ticks
        ]
        if x_ticks is None:
            quarters = (index * self.right / 4 for index in range(5))
            x_ticks = [(value, percent(value, 0) if x_as_percent else f"{value:,.0f}") for value in quarters]
        parts += [
            Markup('<text x="{}" y="{}" class="{}">{}</text>').format(
                f"{self.x(value):.1f}",
                HEIGHT - 20,
                "end" if value == self.right else "middle",
                text,
            )
            for value, text in x_ticks
        ]
        centred = Markup('<text x="{}" y="{}" class="middle">{}</text>')
        parts.append(centred.format((LEFT + self.end + RIGHT) / 2, HEIGHT - 4, x_label))
        rotated = Markup('<text class="middle" transform="translate(12 {}) rotate(-90)">{}</text>')
        parts.append(rotated.format((HEIGHT - BOTTOM) / 2, y_label))
        return Markup("").join(parts)

    def second_axis(self, axis: SecondAxis) -> Markup:
        """The axis on the right, with a short line at each of its own round numbers."""
        low, high = self.low * axis.factor, self.high * axis.factor
        ticks = [tick for tick in _ticks(low, high, maximum=None) if low - 1e-9 <= tick <= high + 1e-9]
        row = Markup('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/><text x="{}" y="{}">{}</text>')
        parts = []
        for tick in ticks:
            y = self.y(tick / axis.factor)
            text = _format(tick, as_percent=False)
            parts.append(row.format(self.end, self.end + 5, f"{y:.1f}", f"{y:.1f}", self.end + 8, f"{y + 4:.1f}", text))
        rotated = Markup('<text class="middle" transform="translate({} {}) rotate(90)">{}</text>')
        parts.append(rotated.format(WIDTH - 10, (HEIGHT - BOTTOM) / 2, axis.label))
        return Markup("").join(parts)


def _svg(parts: Sequence[Markup], description: str) -> Markup:
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, HEIGHT, description, Markup("").join(parts)
    )


def _thin_out(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    step = max(1, len(points) // MAX_POINTS)
    thinned = list(points[::step])
    return thinned if thinned[-1] == points[-1] else [*thinned, points[-1]]


def _ticks(low: float, high: float, *, maximum: float | None) -> list[float]:
    """About five round numbers that span all values."""
    rough = max(high - low, 1e-6) / 4
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.floor(low / step), math.ceil(high / step)
    ticks = [number * step for number in range(first, last + 1)]
    return [tick for tick in ticks if maximum is None or tick <= maximum + 1e-9]


def _describe(value: float, as_percent: bool, second_axis: SecondAxis | None) -> str:
    """A value in words, in both units if there are two."""
    text = _format(value, as_percent)
    return text if second_axis is None else f"{text} ({value * second_axis.factor:.3g} {second_axis.label})"


def _format(value: float, as_percent: bool) -> str:
    if not as_percent:
        return f"{value:.3g}"
    return percent(value, 0 if f"{100 * value:.1f}".endswith(".0") else 1)
