"""The model card of a run, in Markdown with the front matter that model hubs read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vitrail.metric.summary import Summary
from vitrail.run.calibrate import Calibration

TEMPLATE = """---
library_name: vitrail
pipeline_tag: image-classification
tags: [image-classification, vision-transformer, vitrail]
{index}---

# {title}

{model} with {classes} classes, trained by `vitrail train` with the recipe `{recipe}` on {num_train:,} pictures.

| judged on | pictures | {metric} | 95 % interval | balanced accuracy | calibration error (before, noise) |
| --- | --- | --- | --- | --- | --- |
{scores}

{story}

## Use

    vitrail predict RUN IMAGES
    vitrail evaluate RUN DATA

{opens}
Pictures are prepared as `preprocessor_config.json` and `config.yaml` say; labels stand in `labels.json` in the order
of the outputs. {calibrated} The whole account, with pictures: `report.html`.

## How it was made

    {command}

{seconds:,.0f} s on {machine}, PyTorch {torch}. All settings: `config.yaml`.{curves}
What it says to each picture that it was judged on: `predictions.csv`.

## What it should not be used for

Pictures unlike those it was judged on: {unknown} Decisions about people, health or safety without somebody who looks at
the picture too. Its scores hold for pictures like those it was judged on, within the interval.
"""


def model_card(
    *,
    facts: Mapping[str, Any],
    result: Mapping[str, Any],
    summaries: Mapping[str, Summary],
    opened_by: Sequence[str],
    calibration: Calibration,
) -> str:
    """The README.md of a run."""
    opens = (
        'timm (`create_model("local-dir:RUN", pretrained=True)`) and transformers\n'
        '(`AutoModelForImageClassification.from_pretrained("RUN")`) open this folder as it is.\n'
        if len(opened_by) > 1
        else "Neither timm nor transformers has this architecture; Vitrail opens it: `vitrail.load(RUN)`.\n"
    )
    calibrated = (
        f"`calibration.json` says what outputs mean: divided by {calibration.temperature:.2f}, they are calibrated "
        "probabilities."
        if calibration.n
        else "Its confidence is not calibrated, for want of pictures to learn that from."
    )
    unknown = (
        f"it answers with one of its {facts['classes']} classes whatever it is shown."
        if calibration.limit is None
        else f'it says "unknown" to much of that, and to about {calibration.false_alarms:.0%} of what it does know.'
    )
    return TEMPLATE.format(
        **{**facts, "torch": facts["versions"]["torch"]},
        index=_index(facts, summaries),
        metric="mean average precision" if facts["multi_label"] else "accuracy",
        scores="\n".join(_row(split, account) for split, account in summaries.items()),
        opens=opens,
        calibrated=calibrated,
        unknown=unknown,
        curves=" Losses and scores by step: `metrics.jsonl`." if result["steps"] else "",
        seconds=result["seconds"],
        recipe=result["recipe"],
    )


def _score(account: Summary) -> tuple[float, tuple[float, float]]:
    if account.map is not None and account.map_interval is not None:
        return account.map, account.map_interval
    return account.top1, account.interval


def _row(split: str, account: Summary) -> str:
    value, (low, high) = _score(account)
    balanced = "-" if account.balanced is None else f"{account.balanced:.2%}"
    error = f"{account.ece:.2%} ({account.uncalibrated_ece:.2%}, {account.ece_noise:.2%})"
    return f"| {split} | {account.n:,} | {value:.2%} | {low:.2%} to {high:.2%} | {balanced} | {error} |"


def _index(facts: Mapping[str, Any], summaries: Mapping[str, Summary]) -> str:
    """The scores as hubs list them."""
    if not summaries:
        return ""
    split = "test" if "test" in summaries else "val"
    value, _ = _score(summaries[split])
    kind, name = ("mean_average_precision", "mAP") if facts["multi_label"] else ("accuracy", "accuracy")
    title = str(facts["title"]).replace('"', "'").replace("\n", " ")
    return f"""model-index:
- name: "{title}"
  results:
  - task: {{type: image-classification}}
    dataset: {{type: own, name: own pictures, split: {split}}}
    metrics: [{{type: {kind}, name: {name}, value: {value:.4f}}}]
"""
