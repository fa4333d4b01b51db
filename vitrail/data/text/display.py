"""Tokens for people: spaces, line breaks and parts of characters made visible."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from vitrail.data.text.tokenizer import Tokenizer, byte_letters
from vitrail.errors import printable

VISIBLE = {" ": "·", "\n": "↵", "\t": "⇥"}
STRAY_BYTES = re.compile("[\udc80-\udcff]+")


def display_token(tokenizer: Tokenizer, number: int) -> str:
    """A token as a page or a terminal shows it: a space as a dot, part of a character as its bytes, such as <F0 9F>."""
    if number in tokenizer.special_ids:
        return tokenizer.label(number)
    content = token_bytes(tokenizer, number)
    return visible(tokenizer.label(number) if content is None else decode_part(content))


def token_bytes(tokenizer: Tokenizer, number: int) -> bytes | None:
    """The bytes of a token of a byte-level tokenizer; None for other tokenizers and for special tokens."""
    if not _is_byte_level(tokenizer.inner) or number in tokenizer.special_ids:
        return None
    bytes_of = _letter_bytes()
    return bytes(bytes_of[letter] for letter in tokenizer.inner.id_to_token(number))


def decode_part(content: bytes) -> str:
    """Bytes as text; those that are only part of a character are written as numbers, such as <F0 9F>."""
    text = content.decode("utf-8", "surrogateescape")
    return STRAY_BYTES.sub(lambda part: f"<{' '.join(f'{ord(char) - 0xDC00:02X}' for char in part[0])}>", text)


def is_part(content: bytes) -> bool:
    """Whether bytes begin or end within a character."""
    return bool(STRAY_BYTES.search(content.decode("utf-8", "surrogateescape")))


def visible(text: str) -> str:
    """A text with marks for its spaces, and escapes for what cannot be printed."""
    return "".join(VISIBLE.get(char, char if char.isprintable() else printable(char)) for char in text)


def _is_byte_level(inner: Any) -> bool:
    from tokenizers import decoders

    return isinstance(inner.decoder, decoders.ByteLevel)


@cache
def _letter_bytes() -> dict[str, int]:
    return {letter: byte for byte, letter in byte_letters().items()}
