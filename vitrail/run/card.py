"""The model card of a run, in Markdown with the front matter that model hubs read."""

from __future__ import annotations

from typing import Any

TEMPLATE = """---
library_name: vitrail
pipeline_tag: image-classification
tags: [image-classification, vision-transformer, vitrail]
---

# {title}

{model} with {num_classes} classes, trained by `vitrail train` with the recipe `{recipe}` on {num_train:,} pictures.

| judged on | pictures | {metric} |
| --- | --- | --- |
{scores}

{story}

## Use

    vitrail evaluate RUN DATA

{opens}
Pictures are prepared as `preprocessor_config.json` and `config.yaml` say; labels stand in `labels.json` in the order
of the outputs.

## How it was made

    {command}

{seconds:,.0f} s on {machine}. All settings: `config.yaml`. Losses and scores by step: `metrics.jsonl`.

## What it should not be used for

Pictures unlike those it was trained on. It answers with one of its {num_classes} classes whatever it is shown, and its
scores hold for pictures like those it was judged on.
"""


def model_card(facts: dict[str, Any], result: dict[str, Any]) -> str:
    """The README.md of a run."""
    rows = []
    for split in ("val", "test"):
        score = result.get(split)
        if score is not None:
            rows.append(f"| {split} | {score['n']:,} | {score[facts['metric']]:.2%} |")
    others = [name for name in facts["opened_by"] if name != "vitrail"]
    opens = (
        'timm (`create_model("local-dir:RUN", pretrained=True)`) and transformers\n'
        '(`AutoModelForImageClassification.from_pretrained("RUN")`) open this folder as it is.\n'
        if others
        else "Neither timm nor transformers has this architecture; Vitrail opens it: `vitrail.load(RUN)`.\n"
    )
    return TEMPLATE.format(
        **{**facts, "opens": opens, "scores": "\n".join(rows), "seconds": result["seconds"], "recipe": result["recipe"]}
    )
