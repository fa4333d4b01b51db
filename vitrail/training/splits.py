"""The pictures of a run: those to learn from, those to choose by, and those to be judged on at the end."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from vitrail.data.check import check_source, scan_source
from vitrail.data.held_out import hold_out
from vitrail.data.scan import Scan
from vitrail.data.table import SPLITS, Finding, Source, Stream, Table
from vitrail.errors import DataError
from vitrail.run.artefact import is_run
from vitrail.run.directory import stored_config
from vitrail.training.settings import Common
from vitrail.training.view import View
from vitrail.training.world import World

LEAST = 2  # pictures of a class
SCAN_SHARE = 0.1  # of the run's minutes may be spent on scanning the images beforehand


class Splits(NamedTuple):
    """The sets, their classes, and how the validation set came about."""

    train: Source
    val: Source
    test: Source | None
    classes: tuple[str, ...]
    multi_label: bool
    """Whether a picture may have several labels."""
    story: str
    whole: Source | None = None
    """All training pictures, where some of them were held out for validation."""
    findings: tuple[Finding, ...] | None = None
    """What the data check found, if there was one."""

    @property
    def counts(self) -> Int64[Tensor, " K"]:
        """How many training pictures each class has; of shards that is not known."""
        assert isinstance(self.train, Table)
        return torch.from_numpy(np.bincount(self.train.labels, minlength=len(self.classes)))


def make_splits(
    source: Source,
    settings: Common,
    view: View,
    world: World,
    *,
    hold: bool = True,
    check: bool = False,
    chosen: dict[str, Any] | None = None,
) -> Splits:
    """The splits that the data has; where there is none for validation, one is held out of the training pictures.

    With `check` the data is checked first, and the story tells what was found. `chosen` remembers across interruptions
    whether there was time to look at every picture.
    """
    names = source.split_names
    if names and "train" not in names:
        raise DataError("there is nothing to learn from.", got=f"the splits {', '.join(names)}.", hint="a split train.")
    train = source.split("train") if names else source
    test = source.split("test") if "test" in names else None
    multi_label = isinstance(source, Table) and source.starts is not None
    check_classes(train, multi_label=multi_label)
    if isinstance(train, Stream) and "val" not in names:
        raise DataError(
            "shards need a validation split.", got=f"{train.origin} without one.", hint="shards in a folder val."
        )
    look = Scanner(source, settings, view, {} if chosen is None else chosen)
    found, findings = world.on_rank_zero(look.check) if check else ("", None)
    if "val" in names:
        story = f"{found}The validation split is the data's own."
        return Splits(train, source.split("val"), test, source.classes, multi_label, story, findings=findings)
    if not hold:
        story = f"{found}Validated by cross-validation on the training pictures."
        return Splits(train, train, test, source.classes, multi_label, story, findings=findings)
    assert isinstance(train, Table)
    held = world.on_rank_zero(
        lambda: hold_out(train, fraction=settings.val_share, seed=settings.seed, scans=look.at_training())
    )
    if not len(held.val):
        raise DataError("there are too few pictures to hold any out.", got=f"{len(train)}.", hint="more pictures.")
    kinds = f", {held.num_groups:,} groups of duplicates kept together" if held.num_groups else ""
    story = (
        f"{found}{len(held.val):,} of {len(train):,} training pictures were held out for validation, the same share "
        f"of each class{kinds}."
    )
    kept, out = train.only(held.train), train.only(held.val)
    return Splits(kept, out, test, source.classes, multi_label, story, train, findings)


class Scanner:
    """A look at every picture, once, if the run's minutes leave time for it."""

    def __init__(self, source: Source, settings: Common, view: View, chosen: dict[str, Any]) -> None:
        self.source, self.view, self.chosen = source, view, chosen
        self.seconds = None if settings.minutes is None else SCAN_SHARE * 60 * settings.minutes
        self.seen: list[Scan] | None = None

    def check(self) -> tuple[str, tuple[Finding, ...] | None]:
        """What is wrong with the data, in a sentence and in full."""
        self.seen = self._look(self.source, "Checking the data")
        if self.seen is None:
            return "", None
        findings = tuple(check_source(self.source, scans=self.seen).findings)
        kinds = Counter(finding.kind for finding in findings)
        if not kinds:
            return "The data check found nothing wrong. ", findings
        told = f"The data check found {', '.join(f'{num:,} x {kind}' for kind, num in kinds.items())}."
        self.view.say(f"{told} To see them: vitrail check {self.source.origin}")
        return f"{told} ", findings

    def at_training(self) -> list[Scan] | None:
        """The look at each training picture, numbered as they are among themselves."""
        assert isinstance(self.source, Table)
        rows = np.arange(len(self.source))
        if self.source.split_names:
            rows = np.flatnonzero(self.source.splits == SPLITS.index("train"))
        if self.seen is None:
            return self._look(self.source.only(rows), "Looking for duplicates")
        return [replace(self.seen[row], index=number) for number, row in enumerate(rows)]

    def _look(self, source: Source, label: str) -> list[Scan] | None:
        if not self.chosen.get("scanned", True):
            return None
        seconds = None if "scanned" in self.chosen else self.seconds
        seen = scan_source(source, seconds=seconds, progress=lambda done, total: self.view.progress(label, done, total))
        self.chosen["scanned"] = seen is not None
        if seen is None:
            self.view.say(
                f"Looking at all {len(source):,} pictures would take more than {SCAN_SHARE:.0%} of the time, so "
                "duplicates are not looked for: vitrail check does that."
            )
        return seen


def check_classes(train: Source, *, multi_label: bool) -> None:
    """Refuse what cannot be learned: one class only, or a class of one picture."""
    if len(train.classes) < 2 and not multi_label:
        raise DataError(
            "there is one class only, so nothing to tell apart.",
            got=f"{train.classes[0]!r}." if train.classes else "none.",
            hint="a folder for each class.",
        )
    if isinstance(train, Stream):
        return
    counts = np.bincount(train.labels, minlength=len(train.classes))
    few = [f"{name!r} ({count})" for name, count in zip(train.classes, counts, strict=True) if count < LEAST]
    if few:
        raise DataError(
            f"each class needs {LEAST} training pictures at least: one to learn from, one to choose by.",
            got=", ".join(few[:5]) + (f" and {len(few) - 5} more." if len(few) > 5 else "."),
            hint="more pictures of it, or its folder taken out.",
        )


def fingerprint(source: Source) -> str:
    """A word that changes when pictures or labels are added, taken away or renamed."""
    made = hashlib.sha256(repr((source.classes, source.split_names, len(source))).encode())
    if isinstance(source, Table):
        for name in source.names:
            made.update(name.encode("utf-8", "surrogateescape") + b"\0")
        made.update(source.labels.tobytes() + source.splits.tobytes())
    return made.hexdigest()[:16]


def learned_from(model: str | Path, source: Source) -> bool:
    """Whether a run was trained on this data."""
    config = stored_config(Path(model)) if is_run(model) else None
    return config is not None and config["request"].get("data_fingerprint") == fingerprint(source)
