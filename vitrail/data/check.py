"""What is wrong with a data set, found before an hour is lost on it. Nothing of it is changed."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from vitrail.data.class_audit import class_findings
from vitrail.data.duplicates import near_pairs
from vitrail.data.scan import Scan, scan_item
from vitrail.data.table import SPLITS, Finding, Item, Source, Stream
from vitrail.machine import num_cores

KINDS = {
    "empty": "a file without content",
    "missing": "named in a table, but not there",
    "unreadable": "the system, or a password, keeps it from being read",
    "not-a-picture": "something else under the name of a picture",
    "truncated": "the end of the file is missing",
    "damaged": "the content is broken",
    "oversized": "more pixels or bytes than Vitrail decodes",
    "special": "a pipe, socket or device, never opened",
    "link": "a link that is not followed",
    "unsafe": "a name in an archive that is not used",
    "ignored": "in a place, or of a kind, that is not read",
    "wrong-suffix": "read by its content, but other programs may go by the name",
    "blank": "nothing to learn from",
    "leak": "the same picture in two splits: the score would be too good",
    "contradiction": "the same picture under two labels",
    "duplicate": "the same file twice",
    "near-duplicate": "the same picture, encoded again, resized, mirrored or cropped",
    "same-class": "one class under two names, as it seems",
    "slip": "a rare label that looks like a misspelling",
    "layout": "a class that is called like a split",
    "untrained-class": "in another split, but not in train: it cannot be learned",
    "missing-class": "in another split, but not here: it cannot be judged",
    "few-pictures": "too little to learn a class from",
    "imbalance": "the largest class is ten or more times the smallest: train with balanced=true",
}
"""Every kind of finding, in the order they are told."""
SAME, MIRRORED, NEAR = "the same file as", "the mirror image of", "nearly the same picture as"
DOUBLES = {SAME: "duplicate", MIRRORED: "near-duplicate", NEAR: "near-duplicate"}
CHUNK = 32  # pictures a task
TRIED = 0.1  # of the seconds, before it is foretold how many it will take
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a check found, and what it saw on the way."""

    origin: str
    files: int
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    """What is worth knowing, but not wrong."""
    counts: dict[str, dict[str, int]]
    """Pictures by split and class."""
    formats: dict[str, int]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


def check_source(
    source: Source,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    seen: Sequence[Scan] | None = None,
) -> Report:
    """Thumbnail at every picture of a source, unless they have been `seen`, then at all of them together."""
    started = time.monotonic()
    scans = scan_source(source, workers=workers, progress=progress) if seen is None else seen
    assert scans is not None
    split_of = _split_names(source)
    good = [seen for seen in scans if seen.problem is None]
    findings = [
        *source.aside,
        *(seen.problem for seen in scans if seen.problem is not None),
        *(seen.remark for seen in good if seen.remark is not None),
        *_doubles(good, source, split_of),
    ]
    counts = _counts(good, source, split_of)
    findings += class_findings(counts, source.classes)
    place = {kind: number for number, kind in enumerate(KINDS)}
    return Report(
        origin=source.origin,
        files=len(scans) + sum(finding.kind != "ignored" for finding in source.aside),
        findings=tuple(sorted(findings, key=lambda finding: (place[finding.kind], finding.path))),
        notes=(
            *_notes(good),
            *(["there is one class only, so nothing to tell apart"] if len(source.classes) == 1 else []),
        ),
        counts=counts,
        formats=dict(Counter(seen.format or "array" for seen in good).most_common()),
        seconds=time.monotonic() - started,
    )


def scan_source(
    source: Source, *, workers: int | None = None, progress: Progress | None = None, seconds: float | None = None
) -> list[Scan] | None:
    """A look at every picture, in order; None, and an early end, if it would take longer than so many seconds."""
    started = time.monotonic()
    seen: list[Scan] = []
    for each in _probes(source, num_cores() if workers is None else workers):
        seen.append(each)
        if progress is not None:
            progress(len(seen), len(source))
        spent = time.monotonic() - started
        if seconds is not None and spent > seconds * TRIED and spent * len(source) > seconds * len(seen):
            return None
    return seen


def _probes(source: Source, workers: int) -> Iterator[Scan]:
    """A look at each picture, in order; only a few wait at a time, however many there are."""
    waiting: deque[Future[list[Scan]]] = deque()
    with ThreadPoolExecutor(max(1, workers)) as pool:
        try:
            for chunk in _chunks(source):
                waiting.append(pool.submit(lambda pictures: [scan_item(picture) for picture in pictures], chunk))
                if len(waiting) > 2 * workers + 2:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _chunks(pictures: Iterable[Item]) -> Iterator[list[Item]]:
    chunk: list[Item] = []
    for picture in pictures:
        chunk.append(picture)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _split_names(source: Source) -> Callable[[int], str]:
    """The name of a picture's split by the picture's index; nothing if there are no splits."""
    none = "no split" if source.split_names else ""

    def name(split: int) -> str:
        return SPLITS[split] if split >= 0 else none

    if isinstance(source, Stream):
        ends = np.cumsum(source.counts)
        numbers = source.splits
        return lambda index: name(numbers[int(np.searchsorted(ends, index, side="right"))])
    splits = source.splits
    return lambda index: name(int(splits[index]))


def _counts(good: list[Scan], source: Source, split_of: Callable[[int], str]) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for seen in good:
        classes = counts.setdefault(split_of(seen.index), {})
        for label in seen.labels:
            classes[source.classes[label]] = classes.get(source.classes[label], 0) + 1
    return counts


def _doubles(good: list[Scan], source: Source, split_of: Callable[[int], str]) -> Iterator[Finding]:
    """The same picture twice: across splits a leak, under two labels a contradiction, else just a double."""
    by_key: dict[bytes, list[int]] = {}
    for place, seen in enumerate(good):
        by_key.setdefault(seen.key, []).append(place)
    comparable = [place for places in by_key.values() if good[place := places[0]].look is not None]
    near = near_pairs([look for place in comparable if (look := good[place].look) is not None])
    pairs = [(places[0], other, SAME) for places in by_key.values() for other in places[1:]]
    pairs += [(comparable[one], comparable[other], MIRRORED if turned else NEAR) for one, other, turned in near]
    told: set[tuple[int, str]] = set()  # a kind once a picture, with the first that it looks like
    for first, second, how in pairs:
        # The split that comes first keeps the picture: what is in training too is the leak of the others.
        one, other = sorted((good[first], good[second]), key=lambda seen: (_rank(split_of(seen.index)), seen.index))
        kinds = {"leak"} if split_of(one.index) != split_of(other.index) else {DOUBLES[how]}
        if one.labels != other.labels:
            kinds.add("contradiction")
        for kind in kinds:
            if (other.index, kind) not in told:
                told.add((other.index, kind))
                yield Finding(other.name, kind, _told(kind, how, one, other, source, split_of), one.name)


def _rank(split: str) -> int:
    return SPLITS.index(split) if split in SPLITS else len(SPLITS)


def _told(kind: str, how: str, one: Scan, other: Scan, source: Source, split_of: Callable[[int], str]) -> str:
    if kind == "leak":
        return f"{how} {one.name}: in {split_of(other.index)} and in {split_of(one.index)}"
    if kind == "contradiction":
        names = [" and ".join(source.classes[label] for label in seen.labels) or "none" for seen in (one, other)]
        return f"{how} {one.name}, but {names[1]} instead of {names[0]}"
    return f"{how} {one.name}"


def _notes(good: list[Scan]) -> Iterator[str]:
    """Modes, sizes and orientations, if they are mixed."""
    if not good:
        return
    modes = Counter(seen.mode for seen in good)
    if len(modes) > 1:
        yield "colour modes are mixed: " + ", ".join(f"{mode} {num:,}" for mode, num in modes.most_common())
    sizes = sorted({seen.size for seen in good}, key=lambda size: size[0] * size[1])
    if len(sizes) > 1:
        small, large = (f"{columns} x {rows}" for rows, columns in (sizes[0], sizes[-1]))
        yield f"sizes are mixed: {len(sizes):,} of them, {small} to {large} pixels"
    wide = Counter(
        "upright" if rows > columns else "wide" if columns > rows else "square"
        for rows, columns in (seen.size for seen in good)
    )
    if len(wide) > 1:
        yield "shapes are mixed: " + ", ".join(f"{shape} {num:,}" for shape, num in wide.most_common())
    turned = sum(seen.orientation > 1 for seen in good)
    if turned:
        yield f"{turned:,} of {len(good):,} pictures are stored turned, as their EXIF says; Vitrail turns them upright"
