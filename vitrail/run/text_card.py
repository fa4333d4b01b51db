"""The model cards of runs on text."""

from __future__ import annotations

from typing import Any

from vitrail.percent import percent

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
        opens="`vitrail convert RUN --to hf --out FOLDER` writes the weights for transformers.",
        limits="It continues text in the style of what it was trained on. Whatever it says may be wrong or made up.",
    )


def masked_card(facts: dict[str, Any], result: dict[str, Any]) -> str:
    """The README.md of a masked language model."""
    rows = [
        f"| {split} | {score['n']:,} | {percent(score['accuracy'])} | "
        + " | ".join(percent(score["baselines"][name]["accuracy"]) for name in ("unigram", "trigram"))
        + " |"
        for split in ("val", "test")
        if (score := result[split])
    ]
    header = "| split | masked tokens | predicted correctly | most frequent token | by its neighbours' counts |"
    return fill(
        facts,
        result,
        tag="fill-mask",
        what="A masked language model",
        noun="lines",
        scores="\n".join([header, "| --- | --- | --- | --- | --- |", *rows]),
        use='vitrail predict RUN "A man in a [MASK] shirt"',
        opens="transformers has no model of this form (docs/language.md).",
        limits="It knows the words and the style of its training text, and nothing about what is true.",
    )


def translation_card(facts: dict[str, Any], result: dict[str, Any]) -> str:
    """The README.md of a translator."""
    rows = [
        f"| {split} | {language} | {score['n']:,} | {score['bleu']:.1f} | {score['chrf']:.1f} |"
        for split in ("val", "test")
        if result[split]
        for language, score in result[split]["languages"].items()
    ]
    return fill(
        facts,
        result,
        tag="translation",
        what="A translator",
        noun="pairs of sentences",
        scores="\n".join(["| split | to | sentences | BLEU | chrF |", "| --- | --- | --- | --- | --- |", *rows]),
        use='vitrail generate RUN "A man rides a horse."',
        opens="transformers has no model of this form (docs/language.md).",
        limits="It translates sentences like those it was trained on. Others may come out fluent and wrong.",
    )


def fill(facts: dict[str, Any], result: dict[str, Any], **texts: str) -> str:
    """Fill in the card of any kind of text model."""
    return TEMPLATE.format(
        **{**facts, "torch": facts["versions"]["torch"], "recipe": result["recipe"], "seconds": result["seconds"]},
        **texts,
    )
