"""The book of results: a page in Markdown made from the stored results, with a figure for each claim."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from vitrail import plug
from vitrail.benchmark.results import CLAIMS, ClaimResult, complete_seeds, read_all, read_result
from vitrail.benchmark.verdict import Chart, Contrast
from vitrail.errors import InspectionError
from vitrail.files import atomic_write, write_text
from vitrail.inspection.drawing import save_figure

FIGURES = "claims"
SUFFIXES = {".png": False, "-dark.png": True}
"""Of a figure's files, and whether that one is for dark pages."""
DPI = 120
DARK = "#0d1117"  # the background of a page in a dark browser
WORDS = {"sam": "SAM", "vit": "ViT", "resnet": "ResNet"}
INTRODUCTION = """\
# The claims, run

What lectures and papers say about Vision Transformers, checked at desk scale. Each claim is an experiment of minutes
with several seeds. The verdict is computed: every part of a claim is a number that is above zero if it is true, and its
95 % interval over seeds (Student's t) decides. An interval around zero cannot tell. Small images, small models and
minutes of training are not what the papers measured: where a verdict differs from theirs, that is part of the result.

```sh
vitrail claims
vitrail claims set_operation --data data --minutes 10
```

`data` is a folder with CIFAR-10 in `cifar10/cifar10.npz` (`x_train`, `y_train`, `x_test`, `y_test`); some claims also
need Oxford Pets in `oxford_pets/*.zip` and DeiT-Ti in `weights/deit_tiny_patch16_224/model.safetensors`. A claim that
was stopped continues with the same command; with `--minutes`, experiments start only if they are expected to end in
time. `vitrail claims all --data data` runs everything that is missing, after saying how long that takes. This page is
`vitrail claims --page docs/claims.md`, made from [the stored results](../vitrail/benchmark/claim/results).
"""


def write_page(page: Path, results: Path) -> Path:
    """Write the page, and the figures of claims that have run."""
    claims = read_all(results)
    for claim in claims:
        if claim.seeds:
            module = plug.load(CLAIMS, claim.name)
            chart = module.chart(complete_seeds(claim.name, read_result(results, claim.name).rows))
            for suffix, dark in SUFFIXES.items():
                figure = page.parent / "figures" / FIGURES / f"{claim.name}{suffix}"
                figure.parent.mkdir(parents=True, exist_ok=True)
                with atomic_write(figure, InspectionError) as part:
                    save_figure(draw_chart(chart, dark=dark), part, "png", DPI)
    write_text(page_text(claims, results), page, InspectionError)
    return page


def page_text(claims: list[ClaimResult], results: Path) -> str:
    """The page in Markdown."""
    lines = [
        INTRODUCTION,
        "| claim | deck | verdict | seeds | minutes of one core |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| [{_title(claim.name)}](#{claim.name.replace('_', '-')}) | {claim.deck} | {claim.verdict} | {claim.seeds} | "
        f"{claim.minutes:,.0f} |"
        for claim in claims
    ]
    for claim in claims:
        lines += ["", *_section(claim, results)]
    return "\n".join(lines) + "\n"


def _title(name: str) -> str:
    first, *others = name.split("_")
    return " ".join([WORDS.get(first, first.capitalize()), *(WORDS.get(word, word) for word in others)])


def _section(claim: ClaimResult, results: Path) -> Iterator[str]:
    module = plug.load(CLAIMS, claim.name)
    yield f"## {_title(claim.name)}"
    yield ""
    yield f"{claim.claim} (deck {claim.deck})"
    yield ""
    yield f"**{claim.verdict.capitalize()}.** {_evidence(claim.name, results)}"
    yield ""
    yield f"- Experiment: {module.EXPERIMENT}"
    yield f"- In the paper: {module.PAPER}"
    for part in claim.parts:
        yield f"- {_describe(part)}"
    if claim.seeds:
        yield ""
        path = f"figures/{FIGURES}/{claim.name}"
        yield f'<picture><source media="(prefers-color-scheme: dark)" srcset="{path}-dark.png">'
        yield f'<img alt="{_title(claim.name)}" src="{path}.png"></picture>'


def _evidence(name: str, results: Path) -> str:
    stored = read_result(results, name)
    seeds = len(complete_seeds(name, stored.rows))
    if not seeds:
        return f"`vitrail claims {name} --data data` runs it."
    minutes = sum(row.get("processor_seconds", 0.0) for row in stored.rows.values()) / 60
    machines = ", ".join(sorted({str(row.get("cpu", "an unknown processor")) for row in stored.rows.values()}))
    return f"{len(stored.rows)} experiments, {seeds} seeds, {minutes:,.0f} minutes of one core ({machines})."


def _describe(part: Contrast) -> str:
    low, high = part.interval
    factor, digits = (100, 1) if part.unit == "points" else (1, 3)
    numbers = [f"{factor * value:+.{digits}f}" for value in (part.mean, low, high)]
    statement = part.statement[0].upper() + part.statement[1:]
    return f"{statement}: {numbers[0]} {part.unit} ({numbers[1]} to {numbers[2]}): {part.verdict}."


def draw_chart(chart: Chart, *, dark: bool = False) -> Any:
    """Lines through the means over seeds, with a bar of one standard deviation."""
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context("dark_background" if dark else "default"):
        figure = Figure(figsize=(6.4, 3.6), layout="constrained", facecolor=DARK if dark else "white")
        axis = figure.subplots()
        axis.set_facecolor("none")
        for curve in chart.curves:
            x = [place for place, _ in curve.points]
            means = [fmean(values) for _, values in curve.points]
            errors = [stdev(values) if len(values) > 1 else 0.0 for _, values in curve.points]
            axis.errorbar(x, means, yerr=errors, marker="o", capsize=3, label=curve.name)
        if chart.log_x:
            axis.set_xscale("log")
            ticks = sorted({x for curve in chart.curves for x, _ in curve.points})
            axis.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
            axis.minorticks_off()
        if chart.x_names:
            axis.set_xticks(range(len(chart.x_names)), [name.replace(", ", ",\n") for name in chart.x_names])
            axis.margins(x=0.15)
        axis.set(xlabel=chart.x_label, ylabel=chart.y_label)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        if len(chart.curves) > 1 and {curve.name for curve in chart.curves} != set(chart.x_names):
            axis.legend(frameon=False)
    return figure
