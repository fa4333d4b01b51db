"""The model card of a run: Markdown with the front matter that model hubs read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vitrail.calibration import Calibration
from vitrail.metric.summary import Summary
from vitrail.percent import percent, percent_range

TEMPLATE = """---
library_name: vitrail
pipeline_tag: {task}
tags: [{task}, vision-transformer, vitrail]
{index}---

# {title}

{model} with {classes} classes, trained with `vitrail train` and the recipe `{recipe}` on {num_train:,} {noun}s.

| split | {noun}s | {metric} | 95 % interval | balanced accuracy | calibration error (uncalibrated, noise) |
| --- | --- | --- | --- | --- | --- |
{scores}

{story}

## Use

    vitrail predict RUN {words}
    vitrail evaluate RUN DATA

{opens}
{described} the preprocessing; `labels.json` lists the labels in the order of
the outputs. {calibrated} `report.html` shows the full evaluation, with {noun}s.

## Training

    {command}

{seconds:,.0f} s on {machine}, PyTorch {torch}. `config.yaml` has all settings.{curves}
`predictions.csv` has the prediction for every evaluated {noun}.

## Limitations

Do not rely on it for {noun}s unlike those it was evaluated on: {unknown} Decisions about people, health or safety need
a person who checks the {noun} too. Its scores hold, within the interval, for {noun}s like those it was evaluated on.
"""
TASKS = {"image": "image-classification", "sound": "audio-classification", "video": "video-classification"}
"""What model hubs call the classification of each modality."""


def model_card(
    *,
    facts: Mapping[str, Any],
    result: Mapping[str, Any],
    summaries: Mapping[str, Summary],
    loadable_by: Sequence[str],
    calibration: Calibration,
    modality: str = "image",
) -> str:
    """The README.md of a run."""
    opens = (
        'timm (`create_model("local-dir:RUN", pretrained=True)`) and transformers\n'
        '(`AutoModelForImageClassification.from_pretrained("RUN")`) load this folder as it is.\n'
        if len(loadable_by) > 1
        else "Neither timm nor transformers loads this folder as it is; load it with `vitrail.load(RUN)`.\n"
    )
    calibrated = (
        f"Divide the outputs by the temperature in `calibration.json`, {calibration.temperature:.2f}, for calibrated "
        "probabilities."
        if calibration.n
        else "Its confidence is not calibrated: there was nothing to fit a calibration on."
    )
    unknown = (
        f"it always answers with one of its {facts['classes']} classes."
        if calibration.limit is None
        else f'it flags many of them as "unknown", and is meant to flag {percent(calibration.false_alarms, 0)} of '
        f"familiar {modality}s too."
    )
    return TEMPLATE.format(
        **{**facts, "torch": facts["versions"]["torch"]},
        index=_index(facts, summaries, modality),
        task=TASKS[modality],
        noun=modality,
        words=f"{modality}s".upper(),
        described="`preprocessor_config.json` and `config.yaml` describe"
        if modality == "image"
        else "`config.yaml` describes",
        metric="mean average precision" if facts["multi_label"] else "accuracy",
        scores="\n".join(_row(split, summary) for split, summary in summaries.items()),
        opens=opens,
        calibrated=calibrated,
        unknown=unknown,
        curves=" Losses and scores by step are in `metrics.jsonl`, here or in `stages/`." if result["steps"] else "",
        seconds=result["seconds"],
        recipe=result["recipe"],
    )


def _score(summary: Summary) -> tuple[float, tuple[float, float]]:
    if summary.map is not None and summary.map_interval is not None:
        return summary.map, summary.map_interval
    return summary.top1, summary.interval


def _row(split: str, summary: Summary) -> str:
    value, (low, high) = _score(summary)
    balanced = "-" if summary.balanced is None else percent(summary.balanced, 2)
    error = f"{percent(summary.ece, 2)} ({percent(summary.uncalibrated_ece, 2)}, {percent(summary.ece_noise, 2)})"
    return f"| {split} | {summary.n:,} | {percent(value, 2)} | {percent_range((low, high), 2)} | {balanced} | {error} |"


def _index(facts: Mapping[str, Any], summaries: Mapping[str, Summary], modality: str) -> str:
    """The scores in the form that model hubs list."""
    if not summaries:
        return ""
    split = "test" if "test" in summaries else "val"
    value, _ = _score(summaries[split])
    kind, name = ("mean_average_precision", "mAP") if facts["multi_label"] else ("accuracy", "accuracy")
    title = str(facts["title"]).replace('"', "'").replace("\n", " ")
    return f"""model-index:
- name: "{title}"
  results:
  - task: {{type: {TASKS[modality]}}}
    dataset: {{type: own, name: own {modality}s, split: {split}}}
    metrics: [{{type: {kind}, name: {name}, value: {value:.4f}}}]
"""
