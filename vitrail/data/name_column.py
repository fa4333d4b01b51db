"""The names of a table's samples in one block of memory.

A hundred thousand Python strings take tens of megabytes; as one column of bytes they take as many bytes as characters.
NumPy's strings cannot hold file names that are not UTF-8, which Python writes with surrogates.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import overload


class NameColumn(Sequence[str]):
    """A read-only list of names."""

    def __init__(self, names: Iterable[str]) -> None:
        text, ends = bytearray(), array("q", [0])
        for name in names:
            text += name.encode("utf-8", "surrogatepass")
            ends.append(len(text))
        self._text, self._ends = bytes(text), ends

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        return self._text[self._ends[index] : self._ends[index + 1]].decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        return (self[index] for index in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"NameColumn of {len(self)} names"
