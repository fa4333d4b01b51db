"""Tokens for people: spaces, line breaks and parts of characters made visible."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

from vitrail.data.text.cl100k import byte_letters
from vitrail.data.text.tokenizer import UNKNOWN, Tokenizer
from vitrail.errors import printable

MARKS = {"\n": "↵", "\t": "⇥"}
SPACE = "␣"
STRAY_BYTE = re.compile("[\udc80-\udcff]")


class TokenSpan(NamedTuple):
    """One token of a text and the characters that it covers; several tokens may share one character."""

    id: int
    text: str
    """Its characters; bytes that are only part of one are written as numbers, such as <F0><9F>."""
    start: int
    stop: int
    unknown: bool = False
    """Whether the tokenizer does not know these characters, and a model sees [UNK] instead."""


def token_spans(tokenizer: Tokenizer, text: str) -> list[TokenSpan]:
    """The tokens of a text."""
    unknown = tokenizer.special(UNKNOWN)
    spans = []
    for piece in tokenizer.pieces(text):
        content = token_bytes(tokenizer, piece.id)
        shown = piece.text if content is None or not is_part(content) else decode_part(content)
        spans.append(TokenSpan(piece.id, shown, piece.start, piece.stop, piece.id == unknown))
    return spans


def display_token(tokenizer: Tokenizer, number: int) -> str:
    """A token as a page shows it: a space as ␣, part of a character as its bytes, such as <F0><9F>."""
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
    """Bytes as text; those that are only part of a character are written as numbers, such as <F0><9F>."""
    text = content.decode("utf-8", "surrogateescape")
    return STRAY_BYTE.sub(lambda char: f"<{ord(char[0]) - 0xDC00:02X}>", text)


def is_part(content: bytes) -> bool:
    """Whether bytes begin or end within a character."""
    return bool(STRAY_BYTE.search(content.decode("utf-8", "surrogateescape")))


def visible(text: str, *, mark_spaces: bool = True, line_breaks: bool = False) -> str:
    """A text with marks for its spaces, and signs for what cannot be printed.

    With `line_breaks`, lines still end where they did; for text on coloured ground, spaces need no marks.
    """
    marked = "".join(char if char.isprintable() else _sign(char) for char in text)
    if mark_spaces:
        marked = marked.replace(" ", SPACE)
    return marked.replace(MARKS["\n"], MARKS["\n"] + "\n") if line_breaks else marked


def visible_lines(text: str) -> str:
    """A text on coloured ground: spaces and lines as they are, and signs for what cannot be printed."""
    return visible(text, mark_spaces=False, line_breaks=True)


def _sign(char: str) -> str:
    if char in MARKS:
        return MARKS[char]
    return chr(0x2400 + ord(char)) if ord(char) < 32 else printable(char)  # Unicode has a sign for each control code


def _is_byte_level(inner: Any) -> bool:
    from tokenizers import decoders

    return isinstance(inner.decoder, decoders.ByteLevel)


@cache
def _letter_bytes() -> dict[str, int]:
    return {letter: byte for byte, letter in byte_letters().items()}
