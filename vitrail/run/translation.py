"""Translating sentences with a finished model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64
from torch import Tensor

from vitrail.contract import TokenModel
from vitrail.data.prepare.text import pad_rows
from vitrail.data.text.parallel import LANGUAGES, TASK, task_prefix
from vitrail.data.text.tokenizer import END, START, Ids, Tokenizer
from vitrail.errors import DataError, RunError
from vitrail.model.seq2seq import Seq2Seq
from vitrail.run.beam import BEAM, Hypothesis, beam_search
from vitrail.run.text_model import TextModel

BATCH_SIZE = 100


def translate_all(
    model: Seq2Seq,
    tokenizer: Tokenizer,
    sources: Sequence[Ids],
    *,
    beam: int = BEAM,
    progress: Callable[[int, int], None] | None = None,
) -> list[str]:
    """The translations of encoded sources, in their order; those of similar length are translated together."""
    order = sorted(range(len(sources)), key=lambda index: -len(sources[index]))
    found: dict[int, str] = {}
    device = model.embed.weight.device
    for start in range(0, len(order), BATCH_SIZE):
        rows = order[start : start + BATCH_SIZE]
        batch = pad_rows([sources[row] for row in rows], tokenizer.pad, max(len(sources[row]) for row in rows))
        best = _search(model, tokenizer, batch.to(device), beam)
        found |= {index: tokenizer.decode(each.ids) for index, each in zip(rows, best, strict=True)}
        if progress is not None:
            progress(len(found), len(sources))
    return [found[index] for index in range(len(sources))]


def translate_one(
    opened: TextModel, sentence: str, *, beam: int = BEAM, to: str | None = None
) -> tuple[Ids, Hypothesis]:
    """The ids of a sentence with its task before it and [EOS] after it, and its best translation."""
    tokenizer = opened.tokenizer
    if not sentence.strip():
        raise DataError("there is nothing to translate.", got="an empty text.", hint="a sentence.")
    text = written_task(opened.config, sentence, to)
    ids = np.append(tokenizer.encode(text), tokenizer.special(END))
    (best,) = _search(opened.model, tokenizer, opened.batch_of_one(ids), beam)
    return ids, best


def _search(model: TokenModel, tokenizer: Tokenizer, source: Int64[Tensor, "B M"], beam: int) -> list[Hypothesis]:
    start, end = tokenizer.special(START), tokenizer.special(END)
    return beam_search(model, source, start=start, end=end, pad=tokenizer.pad, beam=beam)


def written_task(config: dict[str, Any], sentence: str, to: str | None) -> str:
    """The sentence with its task before it, unless it has one; a language that the run has not learned is refused."""
    try:
        settings = config["request"]["settings"]
        source, targets = str(settings["source"]), [each.strip() for each in str(settings["target"]).split(",")]
    except (KeyError, TypeError, AttributeError) as error:
        raise RunError("the run does not say which languages it translates.", got=f"{error!r}.") from None
    match = TASK.fullmatch(sentence)
    if match is not None and to is None:
        to, sentence = match["target"], match["text"]
    names = {**{LANGUAGES.get(each, each): each for each in targets}, **{each: each for each in targets}}
    if to is not None and to not in names:
        raise DataError(
            f"this run does not translate to {to}.", got=f"a run for {', '.join(targets)}.", hint=f"--to {targets[0]}."
        )
    return task_prefix(source, targets[0] if to is None else names[to]) + sentence.strip()
