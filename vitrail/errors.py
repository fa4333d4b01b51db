"""Errors for users; each says what is wrong, what was got and what to try."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class VitrailError(Exception):
    """Invalid input: one message, exit code 2, nothing left half done."""

    def __init__(self, wrong: str, *, got: str = "", hint: str = "") -> None:
        # Messages contain file names, which may contain line breaks and unprintable characters.
        wrong, got, hint = self.wrong, self.got, self.hint = printable(wrong), printable(got), printable(hint)
        lines = [f"{type(self).__name__}: {wrong}"]
        if got:
            lines.append(f"  Got {got}")
        if hint:
            lines.append(f"  Try {hint}")
        super().__init__("\n".join(lines))


class SpecError(VitrailError):
    """A field of a specification is unknown, has the wrong type or contradicts another field."""


class UnknownNameError(VitrailError):
    """A name is not in the registry folder, the catalogue or the label table."""


class WeightsError(VitrailError):
    """A weight file is damaged, malicious, in an unknown format or for another architecture."""


class DataError(VitrailError):
    """Images or labels cannot be used."""


class RunError(VitrailError):
    """A run directory is in use, belongs to another run, is damaged or cannot be written."""


class TrainError(VitrailError):
    """Training cannot continue: the loss is not finite, or memory ran out."""


class InspectionError(VitrailError):
    """A model lacks what a figure needs, or an image cannot be explained."""


class ServeError(VitrailError):
    """The service cannot start with these options."""


class ExportError(VitrailError):
    """A model cannot be exported, its export loses too much accuracy, or an export cannot be opened."""


class ShapeError(VitrailError):
    """A tensor does not have the shape that the model expects."""


def printable(text: str) -> str:
    """Escape control characters and bytes that are not UTF-8, so that the text prints on one line anywhere."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def brief(error: BaseException) -> str:
    """Shorten another library's error message to one line that ends in a full stop."""
    return (" ".join(str(error).split())[:160].rstrip(".") or type(error).__name__) + "."


def unknown_name(kind: str, name: str, known: Iterable[str], *, more: str = "") -> UnknownNameError:
    """Return the error for an unknown name; its hint lists the nearest known ones."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    suggestions = ", ".join(near or names[:8])
    hint = f"{suggestions}." + (f" {more}" if more else "")
    return UnknownNameError(f"no {kind} has this name.", got=f"{name!r}.", hint=hint)
