"""Two tables as one: labelled images and those that a model has labelled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vitrail.data.table import NO_SPLIT, Table


def join_tables(first: Table, second: Table) -> Table:
    """All rows of both, which have the same classes; if one has soft labels, the result has."""
    assert first.classes == second.classes
    assert not first.multi_label
    assert not second.multi_label
    tables, num = (first, second), len(first)
    soft = any(table.targets is not None for table in tables)

    def place(index: int) -> tuple[Table, int]:
        return (first, index) if index < num else (second, index - num)

    def content(index: int) -> object:
        table, row = place(index)
        return table.content(row)

    def stamp(index: int) -> str:
        table, row = place(index)
        return table.stamp(row)

    return replace(
        first,
        names=[*first.names, *second.names],
        labels=np.concatenate([table.labels for table in tables]),
        targets=np.concatenate([_targets(table) for table in tables]) if soft else None,
        splits=np.full(num + len(second), NO_SPLIT, dtype=np.int8),
        content=content,
        stamp=stamp,
        findings=(*first.findings, *second.findings),
        checksum="",
    )


def _targets(table: Table) -> NDArray[np.float32]:
    return np.eye(len(table.classes), dtype=np.float32)[table.labels] if table.targets is None else table.targets
