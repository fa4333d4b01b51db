"""Tokenizers: characters, sub-words (byte-pair encoding) or words, learned from the user's text.

Whatever it was learned by, a tokenizer is one of Hugging Face's `tokenizers`: tokenizer.json in a run opens in
transformers as it is. Special tokens come after all others. They are never recognised in the text itself: whoever
writes "[EOS]" gets its six characters.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail import documents
from vitrail.errors import DataError, RunError, SpecError, brief
from vitrail.sums import check_sum

TokenizerKind = Literal["characters", "subwords", "words", "cl100k"]
Ids = NDArray[np.int64]
PAD, UNKNOWN, START, END, MASK = SPECIAL = ("[PAD]", "[UNK]", "[BOS]", "[EOS]", "[MASK]")
FILE, HF_CONFIG = "tokenizer.json", "tokenizer_config.json"
MAX_FILE_BYTES = 64 * 2**20
PART_CHARACTERS = 100_000  # of a long text encoded at once
NUM_AT_ONCE = 10_000  # short texts encoded on all cores
LOOKS_SPECIAL = re.compile(r"\[[A-Z]{2,12}\]")
DEFAULT_VOCAB = {"subwords": 4096, "words": 10_000}


class Piece(NamedTuple):
    """One token of a text: its id, and the characters that it covers."""

    id: int
    text: str
    start: int
    stop: int


@dataclass(frozen=True)
class Tokenizer:
    """Text to ids and back."""

    inner: Any
    """The `tokenizers.Tokenizer`."""

    @cached_property
    def num_tokens(self) -> int:
        """The size of the vocabulary, special tokens included."""
        return self.inner.get_vocab_size(with_added_tokens=True)

    def special(self, token: str) -> int:
        """The id of a special token."""
        number = self.inner.token_to_id(token)
        if number is None:
            raise RunError(f"this tokenizer has no {token}.", got=f"{FILE} without it.", hint="a tokenizer of a run.")
        return number

    @cached_property
    def pad(self) -> int:
        """The id of padding."""
        return self.special(PAD)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of all special tokens."""
        return frozenset(self.special(token) for token in SPECIAL)

    def encode(self, text: str) -> Ids:
        """The ids of a text."""
        parts = [self.inner.encode(part, add_special_tokens=False).ids for part in _parts(text)]
        return np.concatenate([np.array(part, dtype=np.int64) for part in parts])

    def encode_all(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of many short texts, on all cores."""
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")  # without it, a later fork prints a warning
        found: list[Ids] = []
        for start in range(0, len(texts), NUM_AT_ONCE):
            encodings = self.inner.encode_batch(list(texts[start : start + NUM_AT_ONCE]), add_special_tokens=False)
            found += [np.array(each.ids, dtype=np.int64) for each in encodings]
        return found

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without special tokens."""
        return self.inner.decode([int(number) for number in ids], skip_special_tokens=True)

    def pieces(self, text: str) -> list[Piece]:
        """The tokens of a text with the characters that each covers."""
        encoding = self.inner.encode(text, add_special_tokens=False)
        return [
            Piece(number, text[start:stop], start, stop)
            for number, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True)
        ]

    @cached_property
    def is_exact(self) -> bool:
        """Whether decoding gives the text back: words lose spaces and rare words, lower case loses case."""
        return self.inner.normalizer is None and self.inner.decoder is not None

    @cached_property
    def is_byte_level(self) -> bool:
        """Whether tokens are sub-words that begin with the space before them."""
        from tokenizers import decoders

        return isinstance(self.inner.decoder, decoders.ByteLevel)

    def encode_marked(self, text: str) -> Ids:
        """The ids of a text in which special tokens are recognised; one that does not exist is refused."""
        parts, last = [], 0
        for match in LOOKS_SPECIAL.finditer(text):
            if match[0] not in SPECIAL:
                raise DataError(
                    f"there is no special token {match[0]}.", got=f"{text!r}.", hint=f"{', '.join(SPECIAL)}."
                )
            before = text[last : match.start()]
            parts += [self.encode(before.rstrip(" ") if self.is_byte_level else before)]  # the space is the gap's
            parts += [np.array([self.special(match[0])])]
            last = match.end()
        return np.concatenate([*parts, self.encode(text[last:])]).astype(np.int64)

    def label(self, number: int) -> str:
        """A token for people: its characters, or its name."""
        if number in self.special_ids:
            return self.inner.id_to_token(number)
        return self.inner.decode([number], skip_special_tokens=False)

    def to_json(self) -> str:
        """The content of tokenizer.json."""
        return self.inner.to_str(pretty=True)


def _parts(text: str) -> Iterator[str]:
    """A long text in parts that end at a line's end, if one is near."""
    start = 0
    while len(text) - start > 2 * PART_CHARACTERS:
        stop = text.find("\n", start + PART_CHARACTERS, start + 2 * PART_CHARACTERS) + 1 or start + PART_CHARACTERS
        yield text[start:stop]
        start = stop
    yield text[start:]


def learn_tokenizer(
    kind: TokenizerKind, texts: Sequence[str], *, vocab: int | None = None, lowercase: bool = False
) -> Tokenizer:
    """Learn a tokenizer from texts, with at most `vocab` tokens besides the special ones."""
    import tokenizers

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")  # without it, a later fork prints a warning
    size = vocab or DEFAULT_VOCAB.get(kind, 0)
    if kind == "characters":
        if vocab:
            raise SpecError(
                "all characters are tokens.", got=f"vocab={vocab}.", hint="tokenizer=subwords, or no vocab."
            )
        inner = _characters(texts, lowercase=lowercase)
    elif kind == "subwords":
        inner = _subwords(texts, size, lowercase=lowercase)
    elif kind == "words":
        inner = _words(texts, size, lowercase=lowercase)
    else:
        if lowercase or vocab:
            raise SpecError("cl100k is a finished tokenizer.", got="vocab or lowercase.", hint="tokenizer=subwords.")
        from vitrail.data.text.cl100k import convert_cl100k

        inner = convert_cl100k()
    inner.add_special_tokens(list(SPECIAL))
    inner.encode_special_tokens = True  # a text that contains "[EOS]" means these characters
    assert isinstance(inner, tokenizers.Tokenizer)
    return Tokenizer(inner)


def _normaliser(*, lowercase: bool) -> Any:
    from tokenizers import normalizers

    return normalizers.Lowercase() if lowercase else None


def _characters(texts: Sequence[str], *, lowercase: bool) -> Any:
    """One token per character, in the order of their code points."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    characters = sorted(set().union(*(set(text.lower() if lowercase else text) for text in texts)))
    vocabulary = {character: number for number, character in enumerate([*characters, UNKNOWN])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    if lowercase:
        inner.normalizer = _normaliser(lowercase=True)
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    inner.decoder = decoders.Fuse()
    return inner


def _subwords(texts: Sequence[str], size: int, *, lowercase: bool) -> Any:
    """Byte-pair encoding of UTF-8, as in GPT-2: any text can be encoded, and decoding gives it back exactly."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    inner = Tokenizer(models.BPE())
    if lowercase:
        inner.normalizer = _normaliser(lowercase=True)
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if size < len(alphabet):
        raise SpecError(
            "sub-words need a token for each byte.", got=f"vocab={size}.", hint=f"vocab={16 * len(alphabet)}."
        )
    trainer = trainers.BpeTrainer(vocab_size=size, min_frequency=2, initial_alphabet=alphabet, show_progress=False)
    inner.train_from_iterator((part for text in texts for part in _parts(text)), trainer)
    return inner


def _words(texts: Sequence[str], size: int, *, lowercase: bool) -> Any:
    """Words and punctuation marks; rare ones become [UNK], and spaces are not kept exactly."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    inner = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    if lowercase:
        inner.normalizer = _normaliser(lowercase=True)
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(vocab_size=size, min_frequency=2, special_tokens=[], show_progress=False)
    inner.train_from_iterator((part for text in texts for part in _parts(text)), trainer)
    vocabulary = inner.get_vocab()
    inner.model = models.WordLevel({**vocabulary, UNKNOWN: len(vocabulary)}, unk_token=UNKNOWN)
    return inner


def read_tokenizer(path: Path) -> Tokenizer:
    """Read the tokenizer.json of a run."""
    import tokenizers

    try:
        content = documents.read_bytes(path, max_bytes=MAX_FILE_BYTES)
        check_sum(path, RunError, content=content)
        tokenizer = parse_tokenizer(content.decode("utf-8"))
        assert isinstance(tokenizer.inner, tokenizers.Tokenizer)
        if not tokenizer.special_ids:
            raise ValueError("no special tokens")
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is not a tokenizer.", got=brief(error), hint="another run.") from None
    return tokenizer


def parse_tokenizer(text: str) -> Tokenizer:
    """Build a tokenizer from the content of tokenizer.json; ValueError if it is something else."""
    import tokenizers

    try:
        inner = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # noqa: BLE001 - the library raises plain Exceptions
        raise ValueError(brief(error)) from None
    inner.encode_special_tokens = True
    return Tokenizer(inner)


def hf_config(tokenizer: Tokenizer, context: int) -> dict[str, Any]:
    """The tokenizer_config.json with which transformers' AutoTokenizer opens a run."""
    names = {"pad_token": PAD, "unk_token": UNKNOWN, "bos_token": START, "eos_token": END, "mask_token": MASK}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        **names,
        "vocab_size": tokenizer.num_tokens,
    }
