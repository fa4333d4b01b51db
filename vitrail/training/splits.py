"""The data of a run: its training, validation and test splits."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from vitrail.data.table import Finding, Source, Table
from vitrail.errors import DataError
from vitrail.run.artefact import is_run
from vitrail.run.directory import stored_config


class Splits(NamedTuple):
    """The splits, and where the validation split comes from."""

    train: Source
    val: Source
    test: Source | None
    note: str
    """Where the validation split comes from."""
    all_train: Source | None = None
    """All training data, if some of it was held out for validation."""
    findings: tuple[Finding, ...] | None = None
    """The findings of the data check, if there was one."""


def check_training_split(source: Source) -> None:
    """Refuse data with splits of which none is for training."""
    names = source.split_names
    if names and "train" not in names:
        raise DataError(
            "there is no training split.", got=f"the splits {', '.join(names)}.", hint="a split called train."
        )


def fingerprint(source: Source) -> str:
    """A hash that changes when files or labels are added, removed or renamed."""
    digest = hashlib.sha256(repr((source.classes, source.split_names, len(source))).encode())
    if isinstance(source, Table):
        for name in source.names:
            digest.update(name.encode("utf-8", "surrogateescape") + b"\0")
        digest.update(source.labels.tobytes() + source.splits.tobytes())
        if source.values is not None:
            digest.update(source.values.tobytes())
        digest.update(source.checksum.encode())
    return digest.hexdigest()[:16]


def was_trained_on(model: str | Path, source: Source) -> bool:
    """Whether a run was trained on this data."""
    config = stored_config(Path(model)) if is_run(model) else None
    return config is not None and config["request"].get("data_fingerprint") == fingerprint(source)
