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
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import DataError, RunError, SpecError, brief

TokenizerKind = Literal["characters", "subwords", "words", "cl100k"]
Ids = NDArray[np.int64]
PAD, UNKNOWN, START, END, MASK = SPECIAL = ("[PAD]", "[UNK]", "[BOS]", "[EOS]", "[MASK]")
FILE, HF_CONFIG = "tokenizer.json", "tokenizer_config.json"
MAX_FILE_BYTES = 64 * 2**20
PIECE_CHARACTERS = 100_000  # of a long text encoded at once
LOOKS_SPECIAL = re.compile(r"\[[A-Z]{2,12}\]")
DEFAULT_VOCAB = {"characters": 65_536, "subwords": 4096, "words": 10_000, "cl100k": 100_256}


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
        pieces = [self.inner.encode(piece, add_special_tokens=False).ids for piece in _pieces(text)]
        return np.array([number for piece in pieces for number in piece], dtype=np.int64)

    def encode_all(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of many short texts, on all cores."""
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")  # without it, a later fork prints a warning
        encodings = self.inner.encode_batch(list(texts), add_special_tokens=False)
        return [np.array(each.ids, dtype=np.int64) for each in encodings]

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

    def encode_marked(self, text: str) -> Ids:
        """The ids of a text in which special tokens are recognised; one that does not exist is refused."""
        parts, last = [], 0
        for match in LOOKS_SPECIAL.finditer(text):
            if match[0] not in SPECIAL:
                raise DataError(
                    f"there is no special token {match[0]}.", got=f"{text!r}.", hint=f"{', '.join(SPECIAL)}."
                )
            parts += [self.encode(text[last : match.start()].rstrip() if last or match.start() else "")]
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


def _pieces(text: str) -> Iterator[str]:
    """A long text in pieces that end at a line's end."""
    start = 0
    while len(text) - start > 2 * PIECE_CHARACTERS:
        stop = text.find("\n", start + PIECE_CHARACTERS) + 1 or len(text)
        yield text[start:stop]
        start = stop
    yield text[start:]


def learn_tokenizer(
    kind: TokenizerKind, texts: Sequence[str], *, vocab: int | None = None, lowercase: bool = False
) -> Tokenizer:
    """Learn a tokenizer from texts, with at most `vocab` tokens besides the special ones."""
    import tokenizers

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")  # without it, a later fork prints a warning
    size = vocab or DEFAULT_VOCAB[kind]
    if kind == "characters":
        inner = _characters(texts, lowercase=lowercase)
    elif kind == "subwords":
        inner = _subwords(texts, size, lowercase=lowercase)
    elif kind == "words":
        inner = _words(texts, size, lowercase=lowercase)
    else:
        if lowercase or vocab:
            raise SpecError("cl100k is a finished tokenizer.", got="vocab or lowercase.", hint="tokenizer=subwords.")
        inner = _cl100k()
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
    inner.train_from_iterator(texts, trainer)
    return inner


def _words(texts: Sequence[str], size: int, *, lowercase: bool) -> Any:
    """Words and punctuation marks; rare ones become [UNK], and spaces are not kept exactly."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    inner = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    if lowercase:
        inner.normalizer = _normaliser(lowercase=True)
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(vocab_size=size, min_frequency=2, special_tokens=[UNKNOWN], show_progress=False)
    inner.train_from_iterator(texts, trainer)
    return inner


def _cl100k() -> Any:
    """OpenAI's cl100k_base, the vocabulary of GPT-4, from `tiktoken`'s ranks."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    try:
        import tiktoken
    except ImportError:
        raise SpecError(
            "cl100k needs the package tiktoken.", got="an environment without it.", hint="pip install tiktoken."
        ) from None
    try:
        encoding = tiktoken.get_encoding("cl100k_base")
    except Exception as error:  # noqa: BLE001 - whatever its downloader raises without a network
        raise DataError(
            "the vocabulary of cl100k cannot be read.",
            got=brief(error),
            hint="a network connection, or TIKTOKEN_CACHE_DIR with the file in it.",
        ) from None
    ranks: dict[bytes, int] = encoding._mergeable_ranks  # noqa: SLF001 - there is no public way to the ranks
    letters = byte_letters()
    written = {"".join(letters[byte] for byte in token): rank for token, rank in ranks.items()}
    merges: list[tuple[str, str]] = []
    for token, rank in sorted(ranks.items(), key=lambda each: each[1]):
        if len(token) > 1:
            first, second = ("".join(letters[byte] for byte in part) for part in _merge_of(token, rank, ranks))
            merges.append((first, second))
    inner = Tokenizer(models.BPE(written, merges, ignore_merges=True))
    # To the regular expressions of `tokenizers`, a plus after {1,3} is a repetition, not a possessive quantifier.
    pattern = encoding._pat_str.replace("{1,3}+", "{1,3}")  # noqa: SLF001
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    return inner


def _merge_of(token: bytes, rank: int, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """The two parts that a token is merged from: its bytes, merged by all earlier ranks."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        candidates = [
            (ranks[left + right], index)
            for index, (left, right) in enumerate(pairwise(parts))
            if ranks.get(left + right, rank) < rank
        ]
        if not candidates:
            break
        _, index = min(candidates)
        parts[index : index + 2] = [parts[index] + parts[index + 1]]
    first, *rest = parts
    return first, b"".join(rest)


def byte_letters() -> dict[int, str]:
    """The letter by which GPT-2's byte-level encoding writes each byte: itself if printable, else one from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(256) if byte not in printable)
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + number) for number, byte in enumerate(others)}


def read_tokenizer(path: Path) -> Tokenizer:
    """Read the tokenizer.json of a run."""
    import tokenizers

    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"more than {MAX_FILE_BYTES // 2**20} MiB")
        tokenizer = parse_tokenizer(path.read_text(encoding="utf-8"))
        assert isinstance(tokenizer.inner, tokenizers.Tokenizer)
        if not tokenizer.special_ids:
            raise ValueError("no special tokens")
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is not a tokenizer.", got=brief(error), hint="another run.") from None
    return tokenizer


def parse_tokenizer(text: str) -> Tokenizer:
    """Build a tokenizer from the content of tokenizer.json; ValueError if it is none."""
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
