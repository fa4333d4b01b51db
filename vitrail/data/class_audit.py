"""Classes that differ between splits, that are one class under two names, that are small, or far from balanced."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from vitrail.data.table import Finding, split_number

FEW = 5  # pictures of a class to learn from
IMBALANCE = 10  # times that the largest class exceeds the smallest
TYPO = 0.75  # how alike two names are
RARE = 20  # times that a name is rarer than the one it may be a slip of
SLIPPED = 3  # letters more or less
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789 "
LISTED = 20  # classes that are named one by one


def class_findings(counts: Mapping[str, Mapping[str, int]], known: Sequence[str] = ()) -> Iterator[Finding]:
    """What is odd about the classes, from the pictures by split and class; some may be `known` by name only."""
    total: dict[str, int] = defaultdict(int, dict.fromkeys(known, 0))
    for classes in counts.values():
        for name, num in classes.items():
            total[name] += num
    yield from _same_names(total)
    yield from _slips(total)
    for name in total:
        if split_number(name) is not None:
            yield Finding(name, "layout", f"a class is called {name!r}: are there folders beside the splits?")
    yield from _between_splits(counts, total)
    # What is learned from; without a split, all of it. A class that has no picture anywhere is told here too.
    learned = {**{name: 0 for name, num in total.items() if not num}, **(counts.get("train") or total)}
    few = {name: num for name, num in sorted(learned.items()) if num < FEW}
    yield from _listed(few, "few-pictures", "{name} has {num} {pictures}", f"classes have fewer than {FEW} pictures")
    learned = {name: num for name, num in learned.items() if num}
    if learned and max(learned.values()) >= IMBALANCE * min(learned.values()):
        large, small = max(learned, key=lambda name: learned[name]), min(learned, key=lambda name: learned[name])
        detail = f"{large} has {learned[large]:,} pictures, {small} has {learned[small]:,}"
        yield Finding("", "imbalance", detail)


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", unicodedata.normalize("NFKC", name)).strip().casefold()


def _same_names(total: Mapping[str, int]) -> Iterator[Finding]:
    """Names that differ only in case, in spaces or in their Unicode form."""
    forms = defaultdict(list)
    for name in sorted(total):
        forms[_plain(name)].append(name)
    for first, *others in forms.values():
        for other in others:
            if unicodedata.normalize("NFC", first) == unicodedata.normalize("NFC", other):
                how = f"their Unicode form, {first!a} and {other!a}"
            elif first.casefold() == other.casefold():
                how = "upper and lower case"
            else:
                how = "spaces, case or form"
            yield Finding(other, "same-class", f"the classes {first!r} and {other!r} differ only in {how}")


def _slips(total: Mapping[str, int]) -> Iterator[Finding]:
    """Rare names that are almost the name of a class many times as large: slips of the pen."""
    names = sorted(total)
    bags = np.array([[_plain(name).count(letter) for letter in LETTERS] for name in names]).reshape(len(names), -1)
    counts = np.array([total[name] for name in names])
    for name, bag in zip(names, bags, strict=True):
        larger = counts >= RARE * max(1, total[name])
        near = np.flatnonzero(larger & (np.abs(bags - bag).sum(axis=1) <= SLIPPED))  # few letters, before more is asked
        likely = [(_likeness(name, names[place]), names[place]) for place in near.tolist()]
        meant = [each for each in likely if each[0] >= TYPO]
        if meant and total[name]:
            other = max(meant)[1]
            yield Finding(name, "slip", f"{total[name]} of {name!r}, {total[other]:,} of {other!r}: the same class?")


def _likeness(name: str, meant: str) -> float:
    """How alike two names are, 1 for the same letters in another order; but cat1 and cat2 are two classes."""
    one, other = _plain(name), _plain(meant)
    if one == other or re.sub(r"\d", "", one) == re.sub(r"\d", "", other):
        return 0.0
    return 1.0 if sorted(one) == sorted(other) else difflib.SequenceMatcher(None, one, other).ratio()


def _between_splits(counts: Mapping[str, Mapping[str, int]], total: Mapping[str, int]) -> Iterator[Finding]:
    for split, classes in counts.items():
        if not split or len(counts) < 2:
            continue
        absent = {name: num for name, num in sorted(total.items()) if num and name not in classes}
        kind = "untrained-class" if split == "train" else "missing-class"
        yield from _listed(absent, kind, f"{{name}} has no picture in {split}", f"classes have no picture in {split}")


def _listed(classes: Mapping[str, int], kind: str, one: str, many: str) -> Iterator[Finding]:
    """A finding a class, or one for all of them if they are many."""
    if len(classes) > LISTED:
        yield Finding("", kind, f"{len(classes):,} {many}, such as {', '.join(list(classes)[:5])}")
        return
    for name, num in classes.items():
        pictures = "picture" if num == 1 else "pictures"
        yield Finding(name, kind, one.format(name=name, num=num, pictures=pictures))
