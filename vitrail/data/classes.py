"""Classes that differ between splits, that are one class under two names, that are small, or far from balanced."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping

from vitrail.data.table import Finding

FEW = 5  # pictures of a class to learn from
IMBALANCE = 10  # times that the largest class exceeds the smallest
TYPO = 0.75  # how alike two names are
RARE = 20  # times that a name is rarer than the one it may be a slip of
LISTED = 20  # classes that are named one by one


def class_findings(counts: Mapping[str, Mapping[str, int]]) -> Iterator[Finding]:
    """What is odd about the classes, from the number of pictures by split and class."""
    total: dict[str, int] = defaultdict(int)
    for classes in counts.values():
        for name, num in classes.items():
            total[name] += num
    yield from _same_names(total)
    yield from _slips(total)
    yield from _between_splits(counts, total)
    learned = counts.get("train") or total  # what is learned from; without a split, all of it
    few = {name: num for name, num in sorted(learned.items()) if num < FEW}
    yield from _listed(few, "few-pictures", "{name} has {num} {pictures}", f"classes have fewer than {FEW} pictures")
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
                how = "their Unicode form"
            elif first.casefold() == other.casefold():
                how = "upper and lower case"
            else:
                how = "spaces, case or form"
            yield Finding(other, "same-class", f"the classes {first!r} and {other!r} differ only in {how}")


def _slips(total: Mapping[str, int]) -> Iterator[Finding]:
    """Rare names that are almost the name of a class many times as large: slips of the pen."""
    for name, num in sorted(total.items()):
        common = [each for each in total if total[each] >= RARE * num and _is_slip(name, each)]
        if common:
            near = max(common, key=lambda each: difflib.SequenceMatcher(None, name, each).ratio())
            yield Finding(name, "slip", f"{num} of {name!r}, {total[near]:,} of {near!r}: the same class?")


def _is_slip(name: str, meant: str) -> bool:
    """Nearly the same letters, or the same in another order; but cat1 and cat2 are two classes."""
    one, other = _plain(name), _plain(meant)
    if one == other or re.sub(r"\d", "", one) == re.sub(r"\d", "", other):
        return False
    return sorted(one) == sorted(other) or difflib.SequenceMatcher(None, one, other).ratio() >= TYPO


def _between_splits(counts: Mapping[str, Mapping[str, int]], total: Mapping[str, int]) -> Iterator[Finding]:
    for split, classes in counts.items():
        if not split or len(counts) < 2:
            continue
        absent = {name: num for name, num in sorted(total.items()) if name not in classes}
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
