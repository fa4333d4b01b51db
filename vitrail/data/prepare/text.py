"""Token ids: a random window of a text, masked tokens, padding."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import PositiveInt

from vitrail import spec
from vitrail.batch import Fields
from vitrail.data.table import Item, Source, Table
from vitrail.data.text.tokenizer import Ids

FIELDS = ("text",)
MULTIPLE = 4  # the length of a padded batch: fewer different shapes
MASKED_RATE = 0.15
SHOWN_AS_MASK, SHOWN_AS_RANDOM = 0.8, 0.1  # of the masked tokens; the others are shown as they are


class Spec(spec.Spec):
    """How texts become the input of a model, besides its tokenizer.json."""

    context: PositiveInt = 256
    """Tokens that the model sees at once."""
    masked_rate: spec.PartialFraction = 0.0
    """The fraction of tokens that are masked and predicted; 0 for models that predict the next token."""


@dataclass(frozen=True, kw_only=True)
class Masking:
    """Masks tokens as BERT does (arXiv 1810.04805, section 3.1): most behind [MASK], some behind a random token."""

    mask: int
    vocab: int
    """Random tokens are below this id."""
    unknown: int = -1
    """Never masked: whoever predicts it has predicted nothing."""
    rate: float = MASKED_RATE

    def apply(self, ids: Ids, rng: np.random.Generator, pad: int, *, training: bool = True) -> tuple[Ids, Ids]:
        """The text with masked tokens, and those tokens, `pad` elsewhere; at least one is masked if any is known."""
        known = np.flatnonzero(ids != self.unknown)
        num = min(len(known), max(1, round(self.rate * len(ids))))
        places = known[rng.permutation(len(known))[:num]]
        draws = rng.random(num) if training else np.zeros(num)  # in evaluation no answer is shown
        text, target = ids.copy(), np.full_like(ids, pad)
        target[places] = ids[places]
        text[places[draws < SHOWN_AS_MASK]] = self.mask
        random = places[(draws >= SHOWN_AS_MASK) & (draws < SHOWN_AS_MASK + SHOWN_AS_RANDOM)]
        text[random] = rng.integers(0, self.vocab, len(random))
        return text, target


Sample = tuple[Ids, ...]


@dataclass(frozen=True, kw_only=True)
class TextPreparation:
    """Rows of token ids for the fields of a model, padded to the longest of a batch."""

    fields: tuple[str, ...] = FIELDS
    context: int
    pad: int
    training: bool = False
    crops: bool = False
    """Whether items are longer than a window: training takes a random one, evaluation the first."""
    masking: Masking | None = None
    group: int = 1
    repeats: int = 1
    draws: int = 0

    @property
    def varies(self) -> bool:
        """Whether windows and masked tokens are random."""
        return self.training and (self.crops or self.masking is not None)

    def reader(self, source: Source) -> Callable[[Item], Sample]:  # noqa: ARG002 - the same for every source
        """Return the function that reads the ids of an item; in evaluation, its first window or its masked tokens."""
        return self._read

    def _read(self, item: Item) -> Sample:
        content = item.content()
        sample: Sample = content if isinstance(content, tuple) else (content,)
        if self.training:
            return sample
        if self.masking is not None:
            # The same tokens of the same text every time, whatever the batch.
            rng = np.random.default_rng(zlib.crc32(sample[0].tobytes()))
            return self.masking.apply(sample[0], rng, self.pad, training=False)
        return (sample[0][: self.context + 1],) if self.crops else sample

    def vary(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Take a random window, or mask random tokens."""
        if self.masking is not None:
            return self.masking.apply(sample[0], rng, self.pad)
        num_starts = max(1, len(sample[0]) - self.context)
        start = int(rng.integers(num_starts))
        return (sample[0][start : start + self.context + 1],)

    def new_rows(self, num: int) -> TextRows:
        """Allocate a batch."""
        return TextRows(self, num)

    def mix(self, fields: Fields, **_: Any) -> Fields:
        """Texts are not mixed."""
        return fields

    def flush(self) -> None:
        """Nothing is cached."""

    def cached(self, source: Source, limit_gb: float) -> TextPreparation:  # noqa: ARG002 - ids are in memory
        """The same: ids are in memory already."""
        return self

    def reduced(self, factor: float, cells: tuple[int, ...]) -> TextPreparation:
        """The same with a shorter context."""
        return replace(self, context=max(1, round(cells[0] * factor)))

    def lengths(self, source: Source) -> NDArray[np.int64] | None:
        """The number of tokens of each item, so that a batch holds items of similar length; None for windows."""
        if self.crops or not isinstance(source, Table):
            return None
        contents = (source.content(index) for index in range(len(source)))
        return np.array([sum(map(len, each)) if isinstance(each, tuple) else len(each) for each in contents])


class TextRows:
    """A batch of token ids in preparation."""

    def __init__(self, prepare: TextPreparation, num: int) -> None:
        self.pad, self.fields = prepare.pad, prepare.fields
        self.samples: list[Sample] = [()] * num
        self.window = prepare.context + 1 if prepare.crops else None

    def put(self, row: int, sample: Sample) -> None:
        """Store the ids of a row."""
        self.samples[row] = sample

    def stack(self, rows: Sequence[int] | None = None) -> Fields:
        """All rows, or these, padded to the same length."""
        samples = self.samples if rows is None else [self.samples[row] for row in rows]
        return {name: self._pad([each[place] for each in samples if each]) for place, name in enumerate(self.fields)}

    def _pad(self, rows: Sequence[Ids]) -> torch.Tensor:
        return pad_rows(rows, self.pad, self.window or -(-max(map(len, rows), default=1) // MULTIPLE) * MULTIPLE)


def pad_rows(rows: Sequence[Ids], pad: int, longest: int) -> torch.Tensor:
    """Rows of ids as one tensor."""
    padded = np.full((len(rows), longest), pad, dtype=np.int64)
    for row, ids in zip(padded, rows, strict=True):
        row[: len(ids)] = ids
    return torch.from_numpy(padded)
