"""Plain text in training, validation and test: the source's own splits, or the end of the text held out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vitrail.data.table import SPLITS, Source, Table
from vitrail.errors import DataError
from vitrail.percent import percent


class CorpusSplits(NamedTuple):
    """The documents of each split, and where the validation split comes from."""

    texts: dict[str, list[str]]
    note: str


def split_corpus(source: Source, val_share: float) -> CorpusSplits:
    """Take the splits of the text; without a validation split, hold out the end of the training text."""
    assert isinstance(source, Table)
    names = source.split_names
    if names and "train" not in names:
        raise DataError(
            "there is no training split.", got=f"the splits {', '.join(names)}.", hint="a file called train.txt."
        )
    texts = {name: [item.content() for item in source.split(name)] for name in names}
    if not names:
        texts["train"] = [item.content() for item in source]
    if "val" in texts:
        return CorpusSplits(texts, "The data has its own validation split.")
    texts["train"], texts["val"] = _hold_out_end(texts["train"], val_share)
    note = f"The last {percent(val_share, 0)} of the text was held out for validation."
    return CorpusSplits(texts, note)


def _hold_out_end(documents: Sequence[str], share: float) -> tuple[list[str], list[str]]:
    """Cut documents in two after this share of their characters, as nanoGPT does."""
    left = int(sum(map(len, documents)) * (1 - share))
    before: list[str] = []
    after: list[str] = []
    for document in documents:
        before += [document[:left]] if left > 0 else []
        after += [document[max(0, left) :]] if left < len(document) else []
        left -= len(document)
    if not "".join(before).strip() or not "".join(after).strip():
        raise DataError("there is too little text to hold any out.", got=f"{sum(map(len, documents))} characters.")
    return before, after


def corpus_split_names(source: Table) -> tuple[str, ...]:
    """The splits of a text that a run was trained on."""
    return tuple(dict.fromkeys((*(source.split_names or ("train",)), "val")))


def corpus_texts(source: Table, split: str, val_share: float) -> list[str]:
    """The documents of a split; all of them for any other name."""
    texts = split_corpus(source, val_share).texts if split in SPLITS else {}
    return texts.get(split) or [item.content() for item in source]
