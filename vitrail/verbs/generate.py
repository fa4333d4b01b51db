"""Generate text: a continuation by a language model, or a translation."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from vitrail.data.text.parallel import LANGUAGES, TASK, task_prefix
from vitrail.data.text.tokenizer import END, START
from vitrail.errors import DataError, RunError
from vitrail.run.beam import BEAM, beam_search
from vitrail.run.sampling import sample_tokens
from vitrail.run.text_model import TextModel, load_text_model

LENGTH = 300
TEMPERATURE = 0.8


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
    unknown = tokenizer.special("[UNK]")
    if unknown in ids:
        raise DataError(
            "the model does not know all of the prompt.",
            got=f"{_first_unknown(opened, prompt)!r}, which its training text does not contain.",
            hint="a prompt without it.",
        )
    end = tokenizer.special(END)
    tokens: list[int] = []
    shown, num_before = "", len(tokenizer.decode(ids))  # words lose some of their spaces
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
        tokens.append(token)
        text = tokenizer.decode([*ids, *tokens])[num_before:]
        if show is not None and not text.endswith("\N{REPLACEMENT CHARACTER}"):  # the rest of a letter is to come
            show(text[len(shown) :])
            shown = text
    text = tokenizer.decode([*ids, *tokens])[num_before:]
    if show is not None:
        show(text[len(shown) :])
    return text, len(tokens)


def _first_unknown(opened: TextModel, prompt: str) -> str:
    unknown = opened.tokenizer.special("[UNK]")
    return next(piece.text for piece in opened.tokenizer.pieces(prompt) if piece.id == unknown)


def translate(opened: TextModel, sentence: str, *, beam: int = BEAM, to: str | None = None) -> tuple[str, int]:
    """Translate one sentence; the task may be written before it."""
    tokenizer = opened.tokenizer
    if not sentence.strip():
        raise DataError("there is nothing to translate.", got="an empty text.", hint="a sentence.")
    text = written_task(opened.config, sentence, to)
    source = opened.batch_of_one(np.append(tokenizer.encode(text), tokenizer.special(END)))
    with torch.inference_mode():
        (best,) = beam_search(
            opened.model,
            source,
            start=tokenizer.special(START),
            end=tokenizer.special(END),
            pad=tokenizer.pad,
            beam=beam,
        )
    return tokenizer.decode(best.ids), len(best.ids)


def written_task(config: dict[str, Any], sentence: str, to: str | None) -> str:
    """The sentence with its task before it, unless it has one; a language that the run has not learned is refused."""
    try:
        settings = config["request"]["settings"]
        source, targets = str(settings["source"]), [str(each) for each in settings["target"].split(",")]
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
