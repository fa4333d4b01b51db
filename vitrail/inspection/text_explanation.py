"""Explains what a model of text does with one text: its attention, and what it predicts at each place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from vitrail import plug
from vitrail.data.text.display import display_token
from vitrail.data.text.tokenizer import END, MASK, START, UNKNOWN, Ids
from vitrail.errors import DataError, InspectionError
from vitrail.inspection.text_trace import AttentionMap, TextTrace, trace_language, trace_seq2seq
from vitrail.model.language import LanguageModel
from vitrail.model.seq2seq import Seq2Seq
from vitrail.percent import percent
from vitrail.run.fill_mask import mask_probabilities
from vitrail.run.text_model import TextModel
from vitrail.run.translation import translate_one

TOP = 5
MAX_SUMMARY = 200  # characters


class TextToken(NamedTuple):
    """A token by its id and as people see it."""

    id: int
    text: str


class PlacePrediction(NamedTuple):
    """The most likely tokens at one place with their probabilities, most likely first."""

    place: int
    """The token that the prediction is made at: it predicts the next one, or what is hidden by [MASK]."""
    tokens: tuple[tuple[TextToken, float], ...]
    actual: tuple[TextToken, float] | None = None
    """The token that follows in the text, and its probability."""


@dataclass(frozen=True, kw_only=True)
class TextExplanation:
    """A model's attention and predictions for one text."""

    kind: str
    text: str
    """The text; for a translator, with its task before it."""
    run: str
    heads: int
    sequences: dict[str, tuple[TextToken, ...]]
    """`text`; for a translator `source`, `target`, which its decoder reads, and `written`, which it writes."""
    maps: tuple[AttentionMap, ...] = field(repr=False)
    predictions: tuple[PlacePrediction, ...] = field(repr=False)
    translation: str | None = None

    @property
    def num_unknown(self) -> int:
        """How many tokens of the input the tokenizer does not know."""
        row = self.sequences["source" if self.kind == "translation" else "text"]
        return sum(token.text == UNKNOWN for token in row)

    @property
    def summary(self) -> str:
        """The prediction in words."""
        if self.translation is not None:
            return self.translation[:MAX_SUMMARY] or "an empty translation"
        if self.kind == "masked_language":
            tops = [f"{MASK} is {_describe(each)}" for each in self.predictions]
            return "; ".join(tops)[:MAX_SUMMARY] or f"no {MASK} in the text"
        return f"the next token is {_describe(self.predictions[-1])}"

    def page(self) -> str:
        """The interactive page."""
        return plug.import_from("vitrail.inspection.text_page", "render")(self)

    def figure(self) -> Any:
        """The attention as a matplotlib figure."""
        return plug.import_from("vitrail.inspection.text_still", "draw")(self)


def _describe(prediction: PlacePrediction) -> str:
    token, probability = prediction.tokens[0]
    return f"“{token.text}”, {percent(probability)}"


def explain_text(opened: TextModel, text: str, *, top: int = TOP, to: str | None = None) -> TextExplanation:
    """Explain a text with the model of a run; a translator translates it to the language `to` first.

    In a text for a masked language model, [MASK] is recognised.
    """
    if not text.strip():
        raise DataError("there is no text to explain.", got="an empty text.", hint="a sentence.")
    if opened.kind == "translation":
        return _explain_translation(opened, text, top, to)
    if to is not None:
        raise DataError("only translators take --to.", got=f"--to {to}.", hint="the run of a translator.")
    tokenizer = opened.tokenizer
    masked = opened.kind == "masked_language"
    ids = tokenizer.encode_marked(text) if masked else tokenizer.encode(text)
    if not len(ids):
        raise DataError("there is no text to explain.", got="a text without tokens.", hint="a sentence.")
    assert isinstance(opened.model, LanguageModel)
    traced = _check(trace_language(opened.model, opened.batch_of_one(ids)))
    if masked:
        places = [place for place, number in enumerate(ids) if number == tokenizer.special(MASK)]
        predictions = _predictions(opened, mask_probabilities(opened, traced.logits[places]), places, None, top)
    else:
        predictions = _predictions(opened, traced.logits.softmax(dim=1), range(len(ids)), ids[1:], top)
    return TextExplanation(
        kind=opened.kind,
        text=text,
        run=opened.path.resolve().name,
        heads=opened.model.spec.heads,
        sequences={"text": _tokens(opened, ids)},
        maps=traced.maps,
        predictions=predictions,
    )


def _explain_translation(opened: TextModel, text: str, top: int, to: str | None) -> TextExplanation:
    tokenizer, model = opened.tokenizer, opened.model
    assert isinstance(model, Seq2Seq)
    source, best = translate_one(opened, text, to=to)
    target = [tokenizer.special(START), *best.ids]
    written = [*best.ids, tokenizer.special(END)]
    traced = _check(trace_seq2seq(model, opened.batch_of_one(source), torch.tensor([target])))
    probabilities = traced.logits.softmax(dim=1)
    return TextExplanation(
        kind=opened.kind,
        text=tokenizer.decode(source),
        run=opened.path.resolve().name,
        heads=model.spec.heads,
        sequences={
            "source": _tokens(opened, source),
            "target": _tokens(opened, target),
            "written": _tokens(opened, written),
        },
        maps=traced.maps,
        predictions=_predictions(opened, probabilities, range(len(target)), written, top),
        translation=tokenizer.decode(best.ids),
    )


def _check(traced: TextTrace) -> TextTrace:
    if not bool(traced.logits.isfinite().all()):
        raise InspectionError("the model's outputs are not finite.", got="NaN or infinity.", hint="another run.")
    return traced


def _tokens(opened: TextModel, ids: Any) -> tuple[TextToken, ...]:
    return tuple(TextToken(int(number), display_token(opened.tokenizer, int(number))) for number in ids)


def _predictions(
    opened: TextModel, probabilities: Float[Tensor, "n V"], places: Any, actual: Ids | list[int] | None, top: int
) -> tuple[PlacePrediction, ...]:
    """The top tokens at each place; `actual` are the ids that follow, none after the last place."""
    values, ids = probabilities[:, : opened.tokenizer.num_tokens].topk(min(top, opened.tokenizer.num_tokens), dim=1)
    following: list[tuple[TextToken, float] | None] = [None] * len(values)
    if actual is not None and len(actual):
        numbers: Int64[Tensor, " n"] = torch.tensor([int(number) for number in actual])
        odds = probabilities[torch.arange(len(numbers)), numbers].tolist()
        following[: len(odds)] = list(zip(_tokens(opened, numbers.tolist()), odds, strict=True))
    return tuple(
        PlacePrediction(place, tuple(zip(_tokens(opened, row), tops, strict=True)), after)
        for place, row, tops, after in zip(places, ids.tolist(), values.tolist(), following, strict=True)
    )
