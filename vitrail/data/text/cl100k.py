"""OpenAI's cl100k_base, the vocabulary of GPT-4: from `tiktoken`'s ranks to a tokenizer of `tokenizers`."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from vitrail.errors import DataError, SpecError, brief


def convert_cl100k() -> Any:
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
