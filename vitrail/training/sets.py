"""The pictures of a run: those to learn from, those to choose by, and those to be judged on at the end."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from vitrail.data.held_out import hold_out
from vitrail.data.table import Source, Stream, Table
from vitrail.errors import DataError
from vitrail.training.settings import Common
from vitrail.training.view import View
from vitrail.training.world import World

LEAST = 2  # pictures of a class


class Sets(NamedTuple):
    """The sets, their classes, and how the validation set came about."""

    train: Source
    val: Source
    test: Source | None
    classes: tuple[str, ...]
    several: bool
    """Whether a picture may have several labels."""
    story: str
    whole: Source | None = None
    """All training pictures, where some of them were held out for validation."""

    @property
    def counts(self) -> Int64[Tensor, " K"]:
        """How many training pictures each class has; of shards that is not known."""
        assert isinstance(self.train, Table)
        return torch.from_numpy(np.bincount(self.train.labels, minlength=len(self.classes)))


def make_sets(source: Source, settings: Common, view: View, world: World, *, hold: bool = True) -> Sets:
    """The splits that the data has; where there is none for validation, one is held out of the training pictures."""
    names = source.split_names
    if names and "train" not in names:
        raise DataError("there is nothing to learn from.", got=f"the splits {', '.join(names)}.", hint="a split train.")
    train = source.split("train") if names else source
    test = source.split("test") if "test" in names else None
    several = isinstance(source, Table) and source.starts is not None
    check_classes(train, several=several)
    if "val" in names:
        return Sets(
            train, source.split("val"), test, source.classes, several, "The validation split is the data's own."
        )
    if isinstance(train, Stream):
        raise DataError(
            "shards need a validation split.", got=f"{train.origin} without one.", hint="shards in a folder val."
        )
    if not hold:
        return Sets(
            train, train, test, source.classes, several, "Validated by cross-validation on the training pictures."
        )
    held = world.lead(
        lambda: hold_out(
            train,
            share=settings.val_share,
            seed=settings.seed,
            progress=lambda done, total: view.progress("Looking for duplicates", done, total),
        )
    )
    if not len(held.held):
        raise DataError("there are too few pictures to hold any out.", got=f"{len(train)}.", hint="more pictures.")
    kinds = f", {held.num_groups:,} groups of duplicates kept together" if held.num_groups else ""
    story = (
        f"{len(held.held):,} of {len(train):,} training pictures were held out for validation, the same share of each "
        f"class{kinds}."
    )
    return Sets(train.only(held.kept), train.only(held.held), test, source.classes, several, story, train)


def check_classes(train: Source, *, several: bool) -> None:
    """Refuse what cannot be learned: one class only, or a class of one picture."""
    if len(train.classes) < 2 and not several:
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
