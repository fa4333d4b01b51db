"""Generate text: a continuation by a language model, or a translation."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from vitrail.data.text.tokenizer import END, UNKNOWN
from vitrail.errors import DataError
from vitrail.run.beam import BEAM
from vitrail.run.sampling import sample_tokens
from vitrail.run.text_model import TextModel, load_text_model
from vitrail.run.translation import translate_one

LENGTH = 300
TEMPERATURE = 0.8
NUM_BEFORE = 8  # tokens that a new one is decoded with: words are joined by spaces


class Generation(NamedTuple):
    """The generated text, without the prompt."""

    prompt: str
    text: str
    num_tokens: int
    seconds: float


def generate(
    run: str | Path,
    prompt: str = "",
    *,
    length: int = LENGTH,
    temperature: float = TEMPERATURE,
    top_k: int | None = None,
    seed: int = 0,
    beam: int = BEAM,
    to: str | None = None,
    cached: bool = True,
    show: Callable[[str], None] | None = None,
) -> Generation:
    """Continue a prompt with the language model of a run, or translate it with its translator.

    `temperature`, `top_k`, `seed` and `length`, in tokens, are for language models; `beam` and the language `to` for
    translators. `show` is called with each piece of text as soon as it is known.
    """
    opened = load_text_model(run, kinds=("language", "translation"))
    began = time.monotonic()
    if opened.kind == "translation":
        text, num = translate(opened, prompt, beam=beam, to=to)
        if show is not None:
            show(text)
    else:
        if to is not None:
            raise DataError("a language model does not translate.", got=f"--to {to}.", hint="the run of a translator.")
        text, num = _continue(opened, prompt, length, temperature, top_k, seed, cached=cached, show=show)
    return Generation(prompt, text, num, round(time.monotonic() - began, 3))


def _continue(
    opened: TextModel,
    prompt: str,
    length: int,
    temperature: float,
    top_k: int | None,
    seed: int,
    *,
    cached: bool,
    show: Callable[[str], None] | None,
) -> tuple[str, int]:
    tokenizer = opened.tokenizer
    ids = tokenizer.encode(prompt)
    if not len(ids):
        raise DataError("there is no text to continue.", got="an empty prompt.", hint="a few words, such as 'ROMEO:'.")
    unknown = tokenizer.special(UNKNOWN)
    if unknown in ids:
        raise DataError(
            "the model does not know all of the prompt.",
            got=f"{_first_unknown(opened, prompt)!r}, which its training text does not contain.",
            hint="a prompt without it.",
        )
    end = tokenizer.special(END)
    text, before, pending, num = "", ids.tolist()[-NUM_BEFORE:], [], 0
    forbidden = tokenizer.special_ids - {end}
    for token in sample_tokens(
        opened.model,
        ids,
        num=length,
        temperature=temperature,
        top_k=top_k,
        seed=seed,
        end=end,
        forbidden=forbidden,
        cached=cached,
    ):
        num += 1
        pending.append(token)
        piece = tokenizer.decode([*before, *pending])[len(tokenizer.decode(before)) :]
        if piece.endswith("\N{REPLACEMENT CHARACTER}") and num < length:  # the rest of a letter is to come
            continue
        text += piece
        before, pending = [*before, *pending][-NUM_BEFORE:], []
        if show is not None:
            show(piece)
    return text, num


def _first_unknown(opened: TextModel, prompt: str) -> str:
    unknown = opened.tokenizer.special(UNKNOWN)
    return next(piece.text for piece in opened.tokenizer.pieces(prompt) if piece.id == unknown)


def translate(opened: TextModel, sentence: str, *, beam: int = BEAM, to: str | None = None) -> tuple[str, int]:
    """Translate one sentence; the task may be written before it."""
    _, best = translate_one(opened, sentence, beam=beam, to=to)
    return opened.tokenizer.decode(best.ids), len(best.ids)
