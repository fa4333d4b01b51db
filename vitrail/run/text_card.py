"""The model cards of runs on text."""

from __future__ import annotations

from typing import Any

TEMPLATE = """---
library_name: vitrail
tags: [{tag}, transformer, vitrail]
---

# {title}

{what} with {params:,} parameters ({model}), trained with `vitrail train` and the recipe `{recipe}` on {num_train:,}
{noun}. Its tokens are {tokenizer}, {vocab:,} of them.

{scores}

{story}

## Use

    {use}

`tokenizer.json` opens in transformers. {opens} `report.html` shows the full evaluation.

## Training

    {command}

{seconds:,.0f} s on {machine}, PyTorch {torch}. `config.yaml` has all settings.

## Limitations

{limits}
"""
MASKED_LIMITS = "It knows the words and the style of its training text, and nothing about what is true."


def language_card(facts: dict[str, Any], result: dict[str, Any]) -> str:
    """The README.md of a language model."""
    rows = [
        f"| {split} | {score['n']:,} | {score['loss']:.4f} | {score['bits']:.4f} |"
        for split in ("val", "test")
        if (score := result[split]) and score["loss"] is not None
    ]
    return fill(
        facts,
        result,
        tag="text-generation",
        what="A causal language model",
        noun="windows of text",
        scores="\n".join(["| split | tokens | nats per token | bits per token |", "| --- | --- | --- | --- |", *rows]),
        use='vitrail generate RUN "Once upon a time"',
        opens="`vitrail convert RUN --to transformers --out FOLDER` writes the weights for transformers.",
        limits="It continues text in the style of what it was trained on. Whatever it says may be wrong or made up.",
    )


def fill(facts: dict[str, Any], result: dict[str, Any], **texts: str) -> str:
    """Fill in the card of any kind of text model."""
    return TEMPLATE.format(
        **{**facts, "torch": facts["versions"]["torch"], "recipe": result["recipe"], "seconds": result["seconds"]},
        **texts,
    )
