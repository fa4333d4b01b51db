"""The report of a language model: perplexity, samples, and what its tokens cost."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from vitrail.data.text.display import visible_lines
from vitrail.data.text.encoded import EncodedTable
from vitrail.data.text.tokenizer import END, Ids
from vitrail.objective.next_token import NextToken
from vitrail.report.run import read_files
from vitrail.report.text_run import write_text_report
from vitrail.report.tokens import LEVELS, Losses, coloured_text, costly_tokens
from vitrail.run.sampling import sample_tokens
from vitrail.run.text_model import TextModel

TEMPERATURES = (0.5, 0.8, 1.0)
NUM_PROMPT, NUM_SAMPLED = 16, 200  # tokens
NUM_WINDOWS, MAX_TOKENS = 100, 50_000  # whose losses are measured
NUM_COLOURED = 400  # tokens


def write_language_report(opened: TextModel, val: EncodedTable) -> None:
    """Write report.html of a language model; `val` holds the windows of the validation text."""
    run = read_files(opened.path, kind="language")
    prompt = val.content(0)[:NUM_PROMPT]
    ids, losses, samples = prompt[:0], np.zeros(0), []
    if run["summary"]["loss"] is not None:
        ids, losses = window_losses(opened, val)
        samples = [sample(opened, prompt, temperature) for temperature in TEMPERATURES]
    write_text_report(
        opened.path,
        "language.html",
        run,
        prompt=visible_lines(opened.tokenizer.decode(prompt)),
        samples=samples,
        num_measured=len(losses),
        costly=costly_tokens(ids, losses, opened.tokenizer),
        coloured=coloured_text(ids[:NUM_COLOURED], losses[:NUM_COLOURED], opened.tokenizer),
        levels=name_levels(),
        uniform_loss=math.log(run["facts"]["vocab"]),
    )


class Sample(NamedTuple):
    """A generated text, without the prompt."""

    temperature: float
    text: str


def sample(opened: TextModel, prompt: Ids, temperature: float) -> Sample:
    """Continue the prompt as `vitrail generate` does."""
    tokenizer, end = opened.tokenizer, opened.tokenizer.special(END)
    tokens = sample_tokens(
        opened.model,
        prompt,
        num=NUM_SAMPLED,
        temperature=temperature,
        end=end,
        forbidden=tokenizer.special_ids - {end},
    )
    num_before = len(tokenizer.decode(prompt))
    return Sample(temperature, visible_lines(tokenizer.decode([*prompt, *tokens])[num_before:]))


@torch.inference_mode()
def window_losses(opened: TextModel, val: EncodedTable) -> tuple[Ids, Losses]:
    """The predicted tokens of the first windows, and their losses."""
    objective, context = NextToken(pad=opened.tokenizer.pad), opened.context
    num = max(1, min(NUM_WINDOWS, MAX_TOKENS // context, len(val)))
    windows = [val.content(row)[: context + 1] for row in range(num)]
    losses = [objective.token_losses(opened.model, torch.from_numpy(each)[None])[0].double() for each in windows]
    return np.concatenate([each[1:] for each in windows]), torch.cat(losses).numpy()


def name_levels() -> list[str]:
    """What each level of colour means."""
    between = [f"{low:g} to {high:g}" for low, high in pairwise(LEVELS)]
    return [f"below {LEVELS[0]:g}", *between, f"above {LEVELS[-1]:g}"]
