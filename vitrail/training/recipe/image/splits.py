"""The splits of a run on images: held out by class, duplicates kept together, the data checked first if asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.check import check_source, scan_source
from vitrail.data.held_out import hold_out
from vitrail.data.scan import Scan
from vitrail.data.table import SPLITS, Finding, Source, Stream, Table
from vitrail.errors import DataError
from vitrail.percent import percent
from vitrail.training.settings import CommonSettings
from vitrail.training.splits import Splits, check_training_split
from vitrail.training.view import View
from vitrail.training.world import World

SCAN_FRACTION = 0.1  # of the run's minutes, at most, for scanning the images beforehand


def make_image_splits(
    source: Source,
    settings: CommonSettings,
    view: View,
    world: World,
    *,
    require: Callable[[Source], None],
    noun: str = "images",
    stratum: str = "class",
    stratify: Callable[[Table], Table] = lambda table: table,
    allow_hold_out: bool = True,
    check: bool = False,
    decisions: dict[str, Any] | None = None,
    path: Path | None = None,  # noqa: ARG001 - for kinds that keep something there
) -> Splits:
    """Take the splits of the data; without a validation split, hold out some of the training images.

    `require` refuses unsuitable training data. `stratify` returns the table whose classes are held out in equal parts.
    With `check`, the data is checked first. `decisions` remembers across interruptions whether there was time to scan
    all images.
    """
    names = source.split_names
    check_training_split(source)
    train = source.split("train") if names else source
    test = source.split("test") if "test" in names else None
    require(train)
    if isinstance(train, Stream) and "val" not in names:
        raise DataError(
            "shards need a validation split.", got=f"{train.origin} without one.", hint="a folder val with shards."
        )
    scanner = Scanner(source, settings, view, {} if decisions is None else decisions)
    check_note, findings = world.on_rank_zero(scanner.check) if check else ("", None)
    if "val" in names:
        note = f"{check_note}The data has its own validation split."
        return Splits(train, source.split("val"), test, note, findings=findings)
    if not allow_hold_out:
        note = f"{check_note}Validated by cross-validation on the training {noun}."
        return Splits(train, train, test, note, findings=findings)
    assert isinstance(train, Table)
    held_out = world.on_rank_zero(
        lambda: hold_out(
            stratify(train), fraction=settings.val_share, seed=settings.seed, scans=scanner.training_scans()
        )
    )
    if not len(held_out.val):
        raise DataError(f"there are too few {noun} to hold any out.", got=f"{len(train)}.", hint=f"more {noun}.")
    groups = f"; {held_out.num_groups:,} groups of duplicates were kept together" if held_out.num_groups else ""
    note = (
        f"{check_note}{len(held_out.val):,} of {len(train):,} training {noun} were held out for validation, the same "
        f"fraction of each {stratum}{groups}."
    )
    train_part, val_part = train.only(held_out.train), train.only(held_out.val)
    return Splits(train_part, val_part, test, note, train, findings)


class Scanner:
    """Scans all images once, if the run's minutes leave time for it."""

    def __init__(self, source: Source, settings: CommonSettings, view: View, decisions: dict[str, Any]) -> None:
        self.source, self.view, self.decisions = source, view, decisions
        self.seconds = None if settings.minutes is None else SCAN_FRACTION * 60 * settings.minutes
        self.scans: list[Scan] | None = None

    def check(self) -> tuple[str, tuple[Finding, ...] | None]:
        """Check the data; return the findings as a sentence and in full."""
        self.scans = self._scan(self.source, "Checking the data")
        if self.scans is None:
            return "", None
        findings = tuple(check_source(self.source, scans=self.scans).findings)
        kinds = Counter(finding.kind for finding in findings)
        if not kinds:
            return "The data check found no problems. ", findings
        summary = f"The data check found {', '.join(f'{num:,} x {kind}' for kind, num in kinds.items())}."
        self.view.say(f"{summary} To list them: vitrail check {self.source.origin}")
        return f"{summary} ", findings

    def training_scans(self) -> list[Scan] | None:
        """The scans of the training images, numbered within the training split."""
        assert isinstance(self.source, Table)
        rows = np.arange(len(self.source))
        if self.source.split_names:
            rows = np.flatnonzero(self.source.splits == SPLITS.index("train"))
        if self.scans is None:
            return self._scan(self.source.only(rows), "Searching for duplicates")
        return [replace(self.scans[row], index=number) for number, row in enumerate(rows)]

    def _scan(self, source: Source, label: str) -> list[Scan] | None:
        if not self.decisions.get("scanned", True):
            return None
        seconds = None if "scanned" in self.decisions else self.seconds
        scans = scan_source(
            source, seconds=seconds, progress=lambda done, total: self.view.progress(label, done, total)
        )
        self.decisions["scanned"] = scans is not None
        if scans is None:
            self.view.say(
                f"Not searching for duplicates: scanning all {len(source):,} {source.modalities[0]}s would take more "
                f"than {percent(SCAN_FRACTION, 0)} of the time. vitrail check finds them."
            )
        return scans
