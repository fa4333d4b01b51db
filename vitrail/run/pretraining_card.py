"""The model card of a pretraining run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vitrail.percent import percent

TEMPLATE = """---
library_name: vitrail
tags: [image-feature-extraction, vision-transformer, vitrail]
---

# {title}

{model}, pretrained with `vitrail train` and the recipe `{recipe}` on {num_train:,} images without labels:
{hidden} of the patches of each image are hidden, and it learns to predict them (`target={target}`).

{scores}

{story}

## Use

    vitrail train DATA --weights RUN

trains a classifier that starts from it. {opens}`decoder.safetensors` belongs to pretraining only: with it,
`vitrail explain RUN IMAGE` draws what the model expects behind hidden patches.

## Training

    {command}

{seconds:,.0f} s on {machine}, PyTorch {torch}. `config.yaml` has all settings.
"""


def pretraining_card(*, facts: Mapping[str, Any], result: Mapping[str, Any], loadable_by: Sequence[str]) -> str:
    """The README.md of a pretraining run."""
    score = result["val"]
    probes = ""
    if score["knn"] is not None:
        probes = (
            f" The 10 nearest neighbours in its features classify {percent(score['knn'])} of them correctly, and a "
            f"linear model on the features {percent(score['linear'])}"
            + (f"; it started from {facts['weights']}." if facts.get("weights") else ", without having seen a label.")
        )
    return TEMPLATE.format(
        **{**facts, "torch": facts["versions"]["torch"]},
        recipe=result["recipe"],
        seconds=result["seconds"],
        hidden=percent(facts["mask_rate"], 0),
        scores=f"Loss on hidden patches: {score['masked_loss']:.4g} on {score['n']:,} validation images.{probes}",
        opens="timm and transformers load this folder as a model without a head. " if loadable_by[1:] else "",
    )
