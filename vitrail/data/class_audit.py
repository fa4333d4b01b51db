"""Finds classes that differ between splits, have two names, have few images, or are far from balanced."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from vitrail.data.table import Finding, split_number

FEW_IMAGES = 5  # a class with fewer is reported
IMBALANCE = 10  # ratio of the largest class to the smallest
MIN_SIMILARITY = 0.75  # of a misspelled name and the intended one
RARITY = 20  # how many times rarer the misspelled name is
MAX_LETTERS = 3  # added and removed in a misspelling
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789 "
MAX_LISTED = 20  # classes reported one by one


def class_findings(counts: Mapping[str, Mapping[str, int]], known: Sequence[str] = ()) -> Iterator[Finding]:
    """Problems of the classes, from the image counts by split and class; `known` adds classes without images."""
    total: dict[str, int] = defaultdict(int, dict.fromkeys(known, 0))
    for classes in counts.values():
        for name, num in classes.items():
            total[name] += num
    yield from _same_names(total)
    yield from _misspellings(total)
    for name in total:
        if split_number(name) is not None:
            yield Finding(name, "layout", f"a class is named {name!r}: are there other folders next to the splits?")
    yield from _between_splits(counts, total)
    # The training images; without splits, all of them. Classes without any image are reported here too.
    train = {**{name: 0 for name, num in total.items() if not num}, **(counts.get("train") or total)}
    few = {name: num for name, num in sorted(train.items()) if num < FEW_IMAGES}
    yield from _list_classes(
        few, "few-images", "{name} has {num} {images}", f"classes have fewer than {FEW_IMAGES} images"
    )
    train = {name: num for name, num in train.items() if num}
    if train and max(train.values()) >= IMBALANCE * min(train.values()):
        large, small = max(train, key=lambda name: train[name]), min(train, key=lambda name: train[name])
        detail = f"{large} has {train[large]:,} images, {small} has {train[small]:,}"
        yield Finding("", "imbalance", detail)


def _normalise(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", unicodedata.normalize("NFKC", name)).strip().casefold()


def _same_names(total: Mapping[str, int]) -> Iterator[Finding]:
    """Names that differ only in case, spaces or Unicode form."""
    forms = defaultdict(list)
    for name in sorted(total):
        forms[_normalise(name)].append(name)
    for first, *others in forms.values():
        for other in others:
            if unicodedata.normalize("NFC", first) == unicodedata.normalize("NFC", other):
                how = f"Unicode form, {first!a} and {other!a}"
            elif first.casefold() == other.casefold():
                how = "upper and lower case"
            else:
                how = "spaces, case or Unicode form"
            yield Finding(other, "same-class", f"the classes {first!r} and {other!r} differ only in {how}")


def _misspellings(total: Mapping[str, int]) -> Iterator[Finding]:
    """Rare names that are almost the name of a class many times as large."""
    names = sorted(total)
    bags = np.array([[_normalise(name).count(letter) for letter in LETTERS] for name in names]).reshape(len(names), -1)
    counts = np.array([total[name] for name in names])
    for name, bag in zip(names, bags, strict=True):
        larger = counts >= RARITY * max(1, total[name])
        near = np.flatnonzero(larger & (np.abs(bags - bag).sum(axis=1) <= MAX_LETTERS))  # cheap, before the comparison
        scored = [(_similarity(name, names[place]), names[place]) for place in near.tolist()]
        similar = [each for each in scored if each[0] >= MIN_SIMILARITY]
        if similar and total[name]:
            other = max(similar)[1]
            detail = f"{total[name]} of {name!r}, {total[other]:,} of {other!r}: the same class?"
            yield Finding(name, "misspelling", detail)


def _similarity(name: str, intended: str) -> float:
    """From 0 to 1, which is the same letters in any order; 0 if only digits differ: cat1 and cat2 are two classes."""
    one, other = _normalise(name), _normalise(intended)
    if one == other or re.sub(r"\d", "", one) == re.sub(r"\d", "", other):
        return 0.0
    return 1.0 if sorted(one) == sorted(other) else difflib.SequenceMatcher(None, one, other).ratio()


def _between_splits(counts: Mapping[str, Mapping[str, int]], total: Mapping[str, int]) -> Iterator[Finding]:
    for split, classes in counts.items():
        if not split or len(counts) < 2:
            continue
        absent = {name: num for name, num in sorted(total.items()) if num and name not in classes}
        kind = "untrained-class" if split == "train" else "missing-class"
        yield from _list_classes(
            absent, kind, f"{{name}} has no images in {split}", f"classes have no images in {split}"
        )


def _list_classes(classes: Mapping[str, int], kind: str, one: str, many: str) -> Iterator[Finding]:
    """One finding per class, or a single one if there are many classes."""
    if len(classes) > MAX_LISTED:
        yield Finding("", kind, f"{len(classes):,} {many}, such as {', '.join(list(classes)[:5])}")
        return
    for name, num in classes.items():
        images = "image" if num == 1 else "images"
        yield Finding(name, kind, one.format(name=name, num=num, images=images))
