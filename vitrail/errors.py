"""The errors a user can meet; each says what is wrong, what was got and what to try."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class VitrailError(Exception):
    """The user's input was wrong: one message, exit code 2, nothing half done."""

    def __init__(self, wrong: str, *, got: str = "", hint: str = "") -> None:
        # Names of files stand in messages, and may hold line breaks and what no terminal can show.
        wrong, got, hint = self.wrong, self.got, self.hint = shown(wrong), shown(got), shown(hint)
        lines = [f"{type(self).__name__}: {wrong}"]
        if got:
            lines.append(f"  Got {got}")
        if hint:
            lines.append(f"  Try {hint}")
        super().__init__("\n".join(lines))


class SpecError(VitrailError):
    """A field of a specification is unknown, of the wrong type or at odds with another."""


class UnknownNameError(VitrailError):
    """A name that no registry folder, catalogue or label table knows."""


class WeightsError(VitrailError):
    """A weight file is damaged, hostile, of an unknown format or of another architecture."""


class DataError(VitrailError):
    """Images or labels cannot be used as they are."""


class RunError(VitrailError):
    """A run directory is in use, belongs to another run, is damaged or cannot be written."""


class TrainError(VitrailError):
    """Training cannot go on: its numbers blew up, or memory does not suffice."""


class InspectionError(VitrailError):
    """A model has not what is to be shown of it, or a picture cannot be explained."""


class ServeError(VitrailError):
    """The service cannot be started as it was asked to be."""


class ExportError(VitrailError):
    """A model cannot be exported, loses too much by it, or what was exported cannot be opened."""


class ShapeError(VitrailError):
    """A tensor does not have the shape that the model was built for."""


def shown(text: str) -> str:
    """Text as it can be printed on one line anywhere: control characters and bytes that are no UTF-8 are escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def brief(error: BaseException) -> str:
    """What another library's exception says, on one short line that ends in a full stop."""
    return (" ".join(str(error).split())[:160].rstrip(".") or type(error).__name__) + "."


def unknown_name(kind: str, name: str, known: Iterable[str], *, more: str = "") -> UnknownNameError:
    """The error for a name that is not there, with the nearest names that are."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    offered = ", ".join(near or names[:8])
    hint = f"{offered}." + (f" {more}" if more else "")
    return UnknownNameError(f"no {kind} has this name.", got=f"{name!r}.", hint=hint)
