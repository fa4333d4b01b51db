"""Prepares several modalities at once: each by its own preparation, texts by a tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.batch import Fields
from vitrail.data.aligned import TEXT, as_part, part_of
from vitrail.data.preparation import Preparation
from vitrail.data.prepare.text import MULTIPLE, pad_rows
from vitrail.data.table import Item, Source
from vitrail.data.text.tokenizer import Ids, Tokenizer

Samples = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class AlignedPreparation:
    """The preparation of each modality, in the order in which they draw at random."""

    parts: Mapping[str, Preparation]
    tokenizer: Tokenizer | None = None
    context: int = 0
    """Tokens of a text that the model sees; those after them are cut off."""
    num_texts: int = 1
    """Texts of a sample, at least: processes that compare their samples with each other need the same number."""
    group: int = 1
    repeats: int = 1
    draws: int = 0

    @property
    def varies(self) -> bool:
        """Whether any modality is augmented."""
        return any(part.varies for part in self.parts.values())

    def reader(self, source: Source) -> Callable[[Item], Samples]:
        """Return the function that reads all modalities of an item."""
        readers = {name: part.reader(source) for name, part in self.parts.items()}

        def read(item: Item) -> Samples:
            found: Samples = {name: reader(as_part(item, name)) for name, reader in readers.items()}
            if self.tokenizer is not None:
                found[TEXT] = encode_texts(part_of(item, TEXT), self.tokenizer, self.context)
            return found

        return read

    def vary(self, sample: Samples, rng: np.random.Generator) -> Samples:
        """Augment each modality that is."""
        return sample | {name: part.vary(sample[name], rng) for name, part in self.parts.items() if part.varies}

    def new_rows(self, num: int) -> AlignedRows:
        """Allocate a batch."""
        return AlignedRows(self, num)

    def mix(self, fields: Fields, **_: Any) -> Fields:
        """Pairs are not mixed."""
        return fields

    def flush(self) -> None:
        """Write what is cached."""
        for part in self.parts.values():
            part.flush()

    def cached(self, source: Source, limit_gb: float) -> AlignedPreparation:  # noqa: ARG002 - several contents per item
        """The same: nothing is cached."""
        return self

    def reduced(self, factor: float, cells: tuple[int, ...]) -> AlignedPreparation:  # noqa: ARG002 - one grid each
        """The same: there is no single resolution to lower."""
        return self

    def lengths(self, source: Source) -> None:  # noqa: ARG002 - the same for every source
        """Batches are random: what is compared in a batch must not depend on the length of texts."""
        return


def encode_texts(texts: Sequence[str], tokenizer: Tokenizer, context: int) -> tuple[Ids, ...]:
    """The ids of each text, at most as many as the model sees."""
    return tuple(tokenizer.encode(text)[:context] for text in texts)


class AlignedRows:
    """A batch of several modalities in preparation."""

    def __init__(self, prepare: AlignedPreparation, num: int) -> None:
        self.rows = {name: part.new_rows(num) for name, part in prepare.parts.items()}
        self.texts: list[tuple[Ids, ...]] | None = None if prepare.tokenizer is None else [()] * num
        self.pad = 0 if prepare.tokenizer is None else prepare.tokenizer.pad
        self.num_texts = prepare.num_texts

    def put(self, row: int, sample: Samples) -> None:
        """Store the modalities of a row."""
        for name, rows in self.rows.items():
            rows.put(row, sample[name])
        if self.texts is not None:
            self.texts[row] = sample[TEXT]

    def stack(self, rows: Sequence[int] | None = None) -> Fields:
        """The fields of all modalities; of texts, [B N] or, if any row has several, [B P N]."""
        fields: Fields = {}
        for part in self.rows.values():
            fields |= part.stack(rows)
        if self.texts is not None:
            texts = self.texts if rows is None else [self.texts[row] for row in rows]
            fields[TEXT] = stack_texts(texts, self.pad, at_least=self.num_texts)
        return fields


def stack_texts(texts: Sequence[tuple[Ids, ...]], pad: int, *, at_least: int = 1) -> Any:
    """Texts as one tensor; rows with fewer of them are filled up with padding."""
    num = max([at_least, *map(len, texts)])
    flat = [ids for each in texts for ids in (*each, *[np.zeros(0, dtype=np.int64)] * (num - len(each)))]
    longest = -(-max(1, *map(len, flat)) // MULTIPLE) * MULTIPLE if flat else MULTIPLE
    padded = pad_rows(flat, pad, longest)
    return padded if num == 1 else padded.view(len(texts), num, longest)
