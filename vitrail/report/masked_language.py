"""The report of a masked language model: its accuracy beside counting, and what it predicts for masked tokens."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.calibration import Calibration
from vitrail.data.prepare.text import TextPreparation
from vitrail.data.text.display import display_token, visible
from vitrail.data.text.encoded import EncodedTable
from vitrail.data.text.tokenizer import MASK, Ids
from vitrail.report.run import read_files
from vitrail.report.text_run import write_text_report
from vitrail.report.tokens import costly_tokens, token_texts
from vitrail.run.text_model import TextModel

NUM_EXAMPLES = 12  # lines
MAX_HIDDEN = 2000  # tokens whose losses are measured
BASELINES = {"trigram": "neighbours", "unigram": "most frequent token"}


class HiddenToken(NamedTuple):
    """A masked token and what the model predicts in its place."""

    token: str
    predicted: str
    right: bool
    probability: float
    true_probability: float
    """That of the masked token itself."""
    shown: str | None
    """What the model saw in its place; None for [MASK]."""


class Example(NamedTuple):
    """A line: its text in parts, each with the number of the masked token that it is, or 0."""

    parts: list[tuple[str, int]]
    hidden: list[HiddenToken]


def write_masked_report(opened: TextModel, val: EncodedTable, prepare: TextPreparation) -> None:
    """Write report.html of a masked language model; `val` holds the lines of the validation split."""
    run = read_files(opened.path, kind="masked_language")
    ids: list[int] = []
    losses: list[float] = []
    examples = []
    if run["summary"]["loss"] is not None:
        ids, losses = hidden_losses(opened, val, prepare)
        rows = np.unique(np.linspace(0, len(val) - 1, NUM_EXAMPLES).astype(int))
        examples = [make_example(opened, val, int(row), prepare, run["calibration"]) for row in rows]
    accuracies = [("this model", run["summary"]["accuracy"], run["summary"]["accuracy_interval"])]
    for name, title in BASELINES.items():
        baseline = run["summary"]["baselines"][name]
        accuracies.append((title, baseline["accuracy"], baseline["interval"]))
    write_text_report(
        opened.path,
        "masked_language.html",
        run,
        accuracies=accuracies,
        examples=examples,
        num_measured=len(losses),
        costly=costly_tokens(ids, losses, opened.tokenizer),
    )


@torch.inference_mode()
def hidden_logits(opened: TextModel, text: Ids, hidden: Ids) -> Float[Tensor, "n V"]:
    """The logits of the masked tokens of a line."""
    return opened.model(torch.from_numpy(text)[None])[0, torch.from_numpy(hidden)].float()


def hidden_losses(opened: TextModel, val: EncodedTable, prepare: TextPreparation) -> tuple[list[int], list[float]]:
    """The first masked tokens, and their losses."""
    read = prepare.reader(val)
    ids: list[int] = []
    losses: list[float] = []
    for item in val:
        text, target = read(item)
        hidden = np.flatnonzero(target != prepare.pad)
        log_probabilities = hidden_logits(opened, text, hidden).double().log_softmax(dim=1)
        losses += (-log_probabilities[range(len(hidden)), target[hidden]]).tolist()
        ids += target[hidden].tolist()
        if len(ids) >= MAX_HIDDEN:
            break
    return ids, losses


def make_example(
    opened: TextModel, val: EncodedTable, row: int, prepare: TextPreparation, calibration: Calibration
) -> Example:
    """Predict the masked tokens of a line, with calibrated probabilities."""
    tokenizer, mask = opened.tokenizer, opened.tokenizer.special(MASK)
    text, target = prepare.reader(val)(val[row])
    hidden = np.flatnonzero(target != prepare.pad)
    probabilities = calibration.probabilities(hidden_logits(opened, text, hidden))
    tokens = []
    for each, place in zip(probabilities, hidden, strict=True):
        predicted, true, shown = int(each.argmax()), int(target[place]), int(text[place])
        tokens.append(
            HiddenToken(
                display_token(tokenizer, true),
                display_token(tokenizer, predicted),
                predicted == true,
                each[predicted].item(),
                each[true].item(),
                None if shown == mask else display_token(tokenizer, shown),
            )
        )
    numbers = np.zeros(len(text), dtype=int)
    numbers[hidden] = np.arange(1, len(hidden) + 1)
    return Example(_mark(token_texts(np.where(numbers > 0, target, text), tokenizer), numbers.tolist(), tokens), tokens)


def _mark(texts: list[str], numbers: list[int], tokens: list[HiddenToken]) -> list[tuple[str, int]]:
    """The parts of a line; the space before a masked token is a part by itself."""
    parts = []
    for text, number in zip(texts, numbers, strict=True):
        word = text.lstrip(" ") if number else text
        parts.append((text[: len(text) - len(word)], 0))
        parts.append((visible(word, mark_spaces=False) or tokens[number - 1].token, number))
    return [part for part in parts if part[0]]
