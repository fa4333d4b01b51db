"""Tables of token ids: windows of a long text, lines, or pairs of sentences, with the tokenizer that made them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vitrail.data.table import NO_SPLIT, Table
from vitrail.data.text.parallel import Pair
from vitrail.data.text.tokenizer import END, START, Ids, Tokenizer
from vitrail.errors import DataError


@dataclass(frozen=True, kw_only=True)
class EncodedTable(Table):
    """Its items are arrays of token ids, or pairs of them."""

    tokenizer: Tokenizer
    num_characters: int = 0
    """The length of the text that the tokens were made from."""
    num_dropped: int = 0
    """Samples that are too long for the model."""
    pairs: tuple[Pair, ...] | None = None
    """The sentences that the samples were made from, for translation."""

    def only(self, rows: Iterable[int]) -> EncodedTable:
        """The same restricted to these rows."""
        chosen = list(rows)
        table = super().only(chosen)
        assert isinstance(table, EncodedTable)
        return table if self.pairs is None else replace(table, pairs=tuple(self.pairs[row] for row in chosen))


class _Names(Sequence[str]):
    """Names of windows by their number; made when they are asked for."""

    def __init__(self, num: int, step: int) -> None:
        self.num, self.step = num, step

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(self.num))]
        if not 0 <= index < self.num:
            raise IndexError(index)
        return f"tokens from {index * self.step:,}"


def windows(source: Table, ids: Ids, tokenizer: Tokenizer, *, context: int, num_characters: int) -> EncodedTable:
    """A long row of tokens, cut every `context` tokens.

    Each item is long enough to take a window of `context` + 1 tokens from it that begins anywhere before the next item:
    training takes a random one, evaluation the first, so that each token is predicted once.
    """
    num = max(1, -(-(len(ids) - 1) // context))
    return EncodedTable(
        **_columns(source, num, _Names(num, context)),
        content=lambda index: ids[index * context : (index + 2) * context],
        tokenizer=tokenizer,
        num_characters=num_characters,
    )


def lines(source: Table, texts: Sequence[str], tokenizer: Tokenizer, context: int) -> EncodedTable:
    """One item per line of text; a long one becomes several."""
    rows: list[Ids] = []
    names: list[str] = []
    stripped = [line.strip() for text in texts for line in text.split("\n")]
    for number, ids in enumerate(tokenizer.encode_all(stripped), start=1):
        for start in range(0, len(ids), context):
            rows.append(ids[start : start + context])
            names.append(f"line {number:,}" + (f" from token {start}" if start else ""))
    if not rows:
        raise DataError(f"{source.origin} has no tokens.", got="empty lines.", hint="a file with text in it.")
    return EncodedTable(
        **_columns(source, len(rows), names),
        content=rows.__getitem__,
        tokenizer=tokenizer,
        num_characters=sum(map(len, texts)),
    )


def sentence_pairs(source: Table, tokenizer: Tokenizer, *, context: int) -> EncodedTable:
    """Each item is the ids of a source and of its target between [BOS] and [EOS]; pairs that are too long are left out.

    `pairs` keeps the sentences themselves.
    """
    start, end = tokenizer.special(START), tokenizer.special(END)
    names: list[str] = []
    rows: list[tuple[Ids, Ids]] = []
    kept: list[Pair] = []
    pairs: list[Pair] = [item.content() for item in source]
    sources, targets = (tokenizer.encode_all([pair[side] for pair in pairs]) for side in (0, 1))
    for name, pair, first, second in zip(source.names, pairs, sources, targets, strict=True):
        row = (np.append(first, end), np.concatenate([[start], second, [end]]))
        if max(map(len, row)) <= context:
            names.append(name)
            rows.append(row)
            kept.append(pair)
    if not rows:
        raise DataError(
            "all sentences are longer than the context.",
            got=f"{len(source):,} sentences, context={context}.",
            hint=f"context={4 * context}.",
        )
    return EncodedTable(
        **_columns(source, len(rows), names),
        content=rows.__getitem__,
        tokenizer=tokenizer,
        num_dropped=len(source) - len(rows),
        pairs=tuple(kept),
    )


def _columns(source: Table, num: int, names: Sequence[str]) -> dict[str, Any]:
    """The columns of a table of `num` samples from this source."""
    return {
        "origin": source.origin,
        "names": names,
        "classes": (),
        "labels": np.zeros(num, dtype=np.int32),
        "splits": np.full(num, NO_SPLIT, dtype=np.int8),
        "root": source.root,
        "checksum": source.checksum,
    }
