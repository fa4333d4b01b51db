"""Finds the class that a user means: by its number, its name, or part of its name."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from vitrail.data.labels import imagenet_classes
from vitrail.errors import UnknownNameError, unknown_name

MAX_NAMED = 5  # classes in an error message


def class_index(name: str | int, labels: Sequence[str]) -> int:
    """The index of a class: by its number, its name, or a part of its name that no other class contains.

    ImageNet's classes have other names too: a tench is a Tinca tinca.
    """
    wanted = str(name).casefold()
    names = _all_names(labels)
    if not isinstance(name, int):  # class names may be numbers
        for position in range(max(map(len, names), default=0)):
            for index, each in enumerate(names):
                if each[position : position + 1] == [wanted]:
                    return index
    if str(name).isdecimal():
        if int(name) < len(labels):
            return int(name)
        raise UnknownNameError(
            "no class has this number.", got=f"{name}.", hint=f"a number from 0 to {len(labels) - 1}."
        )
    by_label = [index for index, each in enumerate(names) if wanted and wanted in each[0]]
    containing = by_label or [
        index for index, each in enumerate(names) if wanted and any(wanted in one for one in each)
    ]
    if len(containing) == 1:
        return containing[0]
    if containing:
        raise UnknownNameError(
            f"{len(containing)} classes contain this name.", got=f"{name!r}.", hint=_listed(containing, labels)
        )
    words = [{word for one in each for word in one.split()} for each in names]
    near = set(difflib.get_close_matches(wanted, set().union(*words), n=3, cutoff=0.7))
    alike = [index for index, each in enumerate(words) if near & each]
    if alike:
        raise UnknownNameError("no class has this name.", got=f"{name!r}.", hint=_listed(alike, labels))
    raise unknown_name("class", str(name), labels)


def _all_names(labels: Sequence[str]) -> list[list[str]]:
    """The names of each class in lower case; ImageNet's own classes have several."""
    classes = imagenet_classes()
    others = [each.others for each in classes] if tuple(labels) == tuple(each.name for each in classes) else []
    return [
        [one.casefold() for one in (label, *(others[index] if others else ()))] for index, label in enumerate(labels)
    ]


def _listed(indices: Sequence[int], labels: Sequence[str]) -> str:
    return f"{', '.join(labels[index] for index in indices[:MAX_NAMED])}."
