"""The model card of a regression run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vitrail.calibration import Calibration
from vitrail.metric.numbers import NumberSummary
from vitrail.percent import percent

TEMPLATE = """---
library_name: vitrail
tags: [image-regression, vision-transformer, vitrail]
---

# {title}

{model} that predicts `{target}` from an image, trained with `vitrail train` and the recipe `{recipe}` on
{num_train:,} images.

| split | images | mean absolute error | 95 % interval | R2 | inside the stated range |
| --- | --- | --- | --- | --- | --- |
{scores}

{story}

## Use

    vitrail predict RUN IMAGES

{opens}`preprocessor_config.json` and `config.yaml` describe the preprocessing. {ranges}
`report.html` shows the full evaluation, with images.

## Training

    {command}

{seconds:,.0f} s on {machine}, PyTorch {torch}. `config.yaml` has all settings. `predictions.csv` has the prediction for
every evaluated image.

## Limitations

Do not rely on it for images unlike those it was evaluated on: it always answers with a number. Decisions about people,
health or safety need a person who checks the image too.
"""


def number_card(
    *,
    facts: Mapping[str, Any],
    result: Mapping[str, Any],
    summaries: Mapping[str, NumberSummary],
    loadable_by: Sequence[str],
    calibration: Calibration,
) -> str:
    """The README.md of a regression run."""
    opens = (
        "timm and transformers load this folder as a model with one output, the number.\n" if loadable_by[1:] else ""
    )
    ranges = (
        "There were too few validation images to state ranges."
        if calibration.half_width is None
        else f"The true number lies within {calibration.half_width:.4g} of the predicted one for "
        f"{percent(calibration.coverage, 0)} of the images."
    )
    return TEMPLATE.format(
        **{**facts, "torch": facts["versions"]["torch"]},
        recipe=result["recipe"],
        seconds=result["seconds"],
        scores="\n".join(_row(split, each) for split, each in summaries.items()),
        opens=opens,
        ranges=ranges,
    )


def _row(split: str, summary: NumberSummary) -> str:
    low, high = summary.interval
    r2 = "-" if summary.r2 is None else f"{summary.r2:.3f}"
    coverage = percent(summary.coverage)
    return f"| {split} | {summary.n:,} | {summary.mae:.4g} | {low:.4g} to {high:.4g} | {r2} | {coverage} |"
