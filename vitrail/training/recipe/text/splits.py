"""Plain text in training, validation and test: the source's own splits, or the end of the text held out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.data.table import SPLITS, Source, Table
from vitrail.data.text.corpus import open_corpus
from vitrail.data.text.encoded import EncodedTable
from vitrail.data.text.tokenizer import Tokenizer
from vitrail.errors import DataError
from vitrail.percent import percent
from vitrail.training.recipe.text.settings import CorpusSettings
from vitrail.training.recipe.text.tokens import find_tokenizer, text_settings
from vitrail.training.settings import CommonSettings
from vitrail.training.splits import Splits
from vitrail.training.view import View
from vitrail.training.world import World

Encode = Callable[[Table, Sequence[str], Tokenizer, int], EncodedTable]
"""From the source, documents, the tokenizer and the context to a table of tokens."""


def open_text(data: str | Path, settings: CommonSettings) -> Source:
    """Open a text file, a folder of text files, or a column of a table."""
    assert isinstance(settings, CorpusSettings)
    return open_corpus(data, column=settings.column)


def make_text_splits(
    source: Source,
    settings: CommonSettings,
    view: View,  # noqa: ARG001 - nothing takes long enough to show
    world: World,
    *,
    encode: Encode,
    path: Path | None = None,
    **_: Any,
) -> Splits:
    """Split the text, learn the tokenizer from its training part, and encode all parts."""
    assert isinstance(source, Table)
    texts, note = split_corpus(source, settings.val_share)
    tokenizer = find_tokenizer(lambda: texts["train"], settings, world, path)
    context = text_settings(settings).context
    tables = {split: encode(source, documents, tokenizer, context) for split, documents in texts.items()}
    return Splits(tables["train"], tables["val"], tables.get("test"), note)


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
    names = source.split_names or ("train",)
    return tuple(dict.fromkeys((*names, "val"))) if "train" in names else names


def corpus_texts(source: Table, split: str, val_share: float) -> list[str]:
    """The documents of a split; all of them for any other name."""
    if split in source.split_names:
        if split == "train" and "val" not in source.split_names:
            return split_corpus(source, val_share).texts["train"]
        return [item.content() for item in source.split(split)]
    texts = split_corpus(source, val_share).texts if split in SPLITS else {}
    return texts.get(split) or [item.content() for item in source]
