"""Finds what is wrong with a data set before an hour of training is wasted on it. The data is only read."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from vitrail.data.class_audit import class_findings
from vitrail.data.duplicates import find_near_duplicates
from vitrail.data.scan import Scan, scan_item
from vitrail.data.scan_clip import clip_notes, scan_clip
from vitrail.data.table import IMAGE, SPLITS, Finding, Item, Source, Stream
from vitrail.machine import num_cores

KINDS = {
    "empty": "the file has no content",
    "missing": "listed in a table, but the file does not exist",
    "unreadable": "no permission to read it, or it needs a password",
    "not-an-image": "something else with an image suffix",
    "truncated": "the end of the file is missing",
    "damaged": "the content is corrupt",
    "oversized": "more pixels or bytes than Vitrail decodes",
    "costly": "takes more time or memory to decode than any ordinary image",
    "special": "a pipe, socket or device; never opened",
    "link": "a link that is not followed",
    "unsafe": "an archive member with an unsafe name; not read",
    "ignored": "in a folder, or of a type, that is not read",
    "wrong-suffix": "read by its content, but other programs may trust the suffix",
    "blank": "a single colour: nothing to learn from",
    "silent": "nothing but silence: nothing to learn from",
    "leak": "the same image in two splits: scores would be too good",
    "contradiction": "the same image under two labels",
    "duplicate": "the same file twice",
    "near-duplicate": "the same image re-encoded, resized, mirrored or cropped",
    "same-class": "probably one class under two names",
    "misspelling": "a rare class name that looks like a misspelling",
    "layout": "a class named like a split",
    "untrained-class": "in another split but not in train: it cannot be learned",
    "missing-class": "in another split but not in this one: it cannot be evaluated",
    "few-images": "too few images to learn a class from",
    "imbalance": "the largest class is at least ten times the smallest: train with balanced=true",
}
"""Every kind of finding, in the order of the report."""
SAME, MIRRORED, NEAR = "the same file as", "the mirror image of", "nearly the same image as"
DUPLICATE_KINDS = {SAME: "duplicate", MIRRORED: "near-duplicate", NEAR: "near-duplicate"}
CHUNK = 32  # images per task
FORECAST_AFTER = 0.1  # fraction of the time limit after which the total time is extrapolated
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Report:
    """The findings of a check, and statistics of the data."""

    origin: str
    files: int
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    """Worth knowing, but not wrong."""
    counts: dict[str, dict[str, int]]
    """The number of images by split and class."""
    formats: dict[str, int]
    seconds: float
    modality: str = "image"
    """What the data consists of: images, sounds or videos."""

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


def check_source(
    source: Source,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    scans: Sequence[Scan] | None = None,
) -> Report:
    """Scan every image of a source, unless its `scans` are passed, then compare them with each other."""
    started = time.monotonic()
    scans = scan_source(source, workers=workers, progress=progress) if scans is None else scans
    assert scans is not None
    split_of = _split_names(source)
    good = [scan for scan in scans if scan.problem is None]
    findings = [
        *source.findings,
        *(scan.problem for scan in scans if scan.problem is not None),
        *(scan.remark for scan in good if scan.remark is not None),
        *_duplicates(good, source, split_of),
    ]
    counts = _count_classes(good, source, split_of)
    findings += class_findings(counts, source.classes) if source.classes else ()
    order = {kind: number for number, kind in enumerate(KINDS)}
    return Report(
        origin=source.origin,
        files=len(scans) + sum(finding.kind != "ignored" for finding in source.findings),
        findings=tuple(sorted(findings, key=lambda finding: (order[finding.kind], finding.path))),
        notes=(
            *(_notes(good) if source.modalities == IMAGE else clip_notes(good)),
            *(["there is only one class, so there is nothing to classify"] if len(source.classes) == 1 else []),
        ),
        counts=counts,
        formats=dict(Counter(scan.format or "array" for scan in good).most_common()),
        seconds=time.monotonic() - started,
        modality=source.modalities[0],
    )


def scan_source(
    source: Source, *, workers: int | None = None, progress: Progress | None = None, seconds: float | None = None
) -> list[Scan] | None:
    """Scan every image, in order. Stops early and returns None if it would take longer than `seconds`."""
    started = time.monotonic()
    seen: list[Scan] = []
    for each in _iter_scans(source, num_cores() if workers is None else workers):
        seen.append(each)
        if progress is not None:
            progress(len(seen), len(source))
        spent = time.monotonic() - started
        if seconds is not None and spent > seconds * FORECAST_AFTER and spent * len(source) > seconds * len(seen):
            return None
    return seen


def _iter_scans(source: Source, workers: int) -> Iterator[Scan]:
    """Scan each image, in order, with a bounded number of tasks in flight."""
    pending: deque[Future[list[Scan]]] = deque()
    scan = scan_item if source.modalities == IMAGE else partial(scan_clip, modality=source.modalities[0])
    with ThreadPoolExecutor(max(1, workers)) as pool:
        try:
            for chunk in _chunks(source):
                pending.append(pool.submit(lambda items: [scan(item) for item in items], chunk))
                if len(pending) > 2 * workers + 2:
                    yield from pending.popleft().result()
            while pending:
                yield from pending.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    chunk: list[Item] = []
    for item in items:
        chunk.append(item)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _split_names(source: Source) -> Callable[[int], str]:
    """A function from an image's index to its split's name; empty names if there are no splits."""
    none = "no split" if source.split_names else ""

    def name(split: int) -> str:
        return SPLITS[split] if split >= 0 else none

    if isinstance(source, Stream):
        ends = np.cumsum(source.counts)
        numbers = source.splits
        return lambda index: name(numbers[int(np.searchsorted(ends, index, side="right"))])
    splits = source.splits
    return lambda index: name(int(splits[index]))


def _count_classes(good: list[Scan], source: Source, split_of: Callable[[int], str]) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for scan in good:
        classes = counts.setdefault(split_of(scan.index), {})
        for label in scan.labels:
            classes[source.classes[label]] = classes.get(source.classes[label], 0) + 1
    return counts


def _duplicates(good: list[Scan], source: Source, split_of: Callable[[int], str]) -> Iterator[Finding]:
    """Images that occur twice: a leak across splits, a contradiction under two labels, else a duplicate."""
    by_key: dict[bytes, list[int]] = {}
    for place, scan in enumerate(good):
        by_key.setdefault(scan.key, []).append(place)
    comparable = [place for places in by_key.values() if good[place := places[0]].thumbnail is not None]
    near = find_near_duplicates([thumbnail for place in comparable if (thumbnail := good[place].thumbnail) is not None])
    pairs = [(places[0], other, SAME) for places in by_key.values() for other in places[1:]]
    pairs += [(comparable[one], comparable[other], MIRRORED if mirrored else NEAR) for one, other, mirrored in near]
    reported: set[tuple[int, str]] = set()  # each kind once per image, with the first image that it resembles
    for first, second, how in pairs:
        # The earlier split keeps the image: one that is also in train is reported for the other split.
        one, other = sorted((good[first], good[second]), key=lambda scan: (_rank(split_of(scan.index)), scan.index))
        kinds = {"leak"} if split_of(one.index) != split_of(other.index) else {DUPLICATE_KINDS[how]}
        if _label_text(one, source) != _label_text(other, source):
            kinds.add("contradiction")
        for kind in kinds:
            if (other.index, kind) not in reported:
                reported.add((other.index, kind))
                yield Finding(other.name, kind, _describe(kind, how, one, other, source, split_of), one.name)


def _rank(split: str) -> int:
    return SPLITS.index(split) if split in SPLITS else len(SPLITS)


def _describe(kind: str, how: str, one: Scan, other: Scan, source: Source, split_of: Callable[[int], str]) -> str:
    if kind == "leak":
        return f"{how} {one.name}: in {split_of(other.index)} and in {split_of(one.index)}"
    if kind == "contradiction":
        return f"{how} {one.name}, but labelled {_label_text(other, source)} instead of {_label_text(one, source)}"
    return f"{how} {one.name}"


def _label_text(scan: Scan, source: Source) -> str:
    """The labels of an image in words, or its number."""
    if source.values is not None:
        return f"{source.values[scan.index]:g}"
    return " and ".join(source.classes[label] for label in scan.labels) or "none"


def _notes(good: list[Scan]) -> Iterator[str]:
    """Mixed colour modes, sizes and orientations."""
    if not good:
        return
    modes = Counter(scan.mode for scan in good)
    if len(modes) > 1:
        yield "colour modes are mixed: " + ", ".join(f"{mode} {num:,}" for mode, num in modes.most_common())
    sizes = sorted({scan.size for scan in good}, key=lambda size: size[0] * size[1])
    if len(sizes) > 1:
        small, large = (f"{columns} x {rows}" for rows, columns in (sizes[0], sizes[-1]))
        yield f"sizes are mixed: {len(sizes):,} different ones, {small} to {large} pixels"
    shapes = Counter(
        "portrait" if rows > columns else "landscape" if columns > rows else "square"
        for rows, columns in (scan.size for scan in good)
    )
    if len(shapes) > 1:
        yield "shapes are mixed: " + ", ".join(f"{shape} {num:,}" for shape, num in shapes.most_common())
    rotated = sum(scan.orientation > 1 for scan in good)
    if rotated:
        yield f"{rotated:,} of {len(good):,} images have an EXIF rotation; Vitrail applies it"
