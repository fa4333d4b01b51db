"""The model card of a run that aligns modalities."""

from __future__ import annotations

from typing import Any

from vitrail.percent import percent, percent_range

TEMPLATE = """---
library_name: vitrail
tags: [contrastive, multimodal, vitrail]
---

# {title}

{model}, {params:,} parameters, trained with `vitrail train` and the recipe `{recipe}` on {num_train:,} samples.

How often the nearest neighbour in the other modality is the right one (recall at 1):

| split | from | to | recall at 1 | 95 % interval | chance |
| --- | --- | --- | --- | --- | --- |
{scores}

{story}

## Use

    vitrail search RUN QUERY DATA
    vitrail predict RUN IMAGES --labels "a cat,a dog"

## Training

    {command}

{seconds:,.0f} s on {machine}, PyTorch {torch}. `config.yaml` has all settings.

## Limitations

It compares what it was trained on: other subjects, voices and words may end up anywhere. A nearest neighbour always
exists, whether or not anything fits.
"""


def aligned_card(facts: dict[str, Any], result: dict[str, Any]) -> str:
    """The README.md of a run."""
    rows = [
        f"| {split} | {each['from']} | {each['to']} | {percent(each['recall'])} | "
        f"{percent_range(each['interval'])} | {percent(each['chance'])} |"
        for split in ("val", "test")
        if result[split]
        for each in result[split]["directions"]
    ]
    return TEMPLATE.format(
        **{**facts, "torch": facts["versions"]["torch"]},
        scores="\n".join(rows),
        recipe=result["recipe"],
        seconds=result["seconds"],
    )
