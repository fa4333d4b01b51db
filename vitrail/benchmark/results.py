"""Stored results of the claims, and the verdicts that follow from them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

from vitrail import documents, plug
from vitrail.benchmark.verdict import Contrast, Measured, Verdict, conclude, deciding
from vitrail.errors import DataError, brief

CLAIMS = "vitrail.benchmark.claim"
RESULTS = Path(__file__).parent / "claim" / "results"


class Stored(NamedTuple):
    """The file of a claim: the rows of its experiments by their keys, and where they ran."""

    name: str
    rows: dict[str, dict[str, Any]]
    hardware: dict[str, Any]


class ClaimResult(NamedTuple):
    """A claim and its verdict."""

    name: str
    deck: str
    claim: str
    verdict: Verdict
    statistic: float | None
    """Of the part that the verdict rests on."""
    interval: tuple[float, float] | None
    seeds: int
    minutes: float
    """Processor minutes of all experiments."""
    parts: tuple[Contrast, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """As a JSON document."""
        document = self._asdict()
        document["parts"] = [
            {
                "statement": part.statement,
                "mean": part.mean,
                "interval": _finite(part.interval),
                "unit": part.unit,
                "verdict": part.verdict,
                "values": list(part.values),
            }
            for part in self.parts
        ]
        return document


def read_result(folder: Path, name: str) -> Stored:
    """The stored rows of a claim; none if there is no file."""
    file = folder / f"{name}.json"
    if not file.is_file():
        return Stored(name, {}, {})
    try:
        document = documents.parse_json(documents.read_bytes(file))
        rows = document["rows"]
        if not isinstance(rows, dict) or not all(isinstance(row, dict) for row in rows.values()):
            raise TypeError("rows must be objects")
        return Stored(name, rows, dict(document.get("hardware") or {}))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file} is no result of a claim.", got=brief(error), hint="deleting it.") from None


def complete_seeds(name: str, rows: dict[str, dict[str, Any]]) -> Measured:
    """For each seed whose experiments have all run, their rows by name."""
    found, seed = [], 0
    experiments = plug.load(CLAIMS, name).experiments
    while rows:
        wanted = experiments(seed)
        if not all(each.key in rows for each in wanted.values()):
            break
        found.append({key: rows[each.key] for key, each in wanted.items()})
        seed += 1
    return found


def summarise(stored: Stored) -> ClaimResult:
    """The verdict that follows from the stored rows."""
    module = plug.load(CLAIMS, stored.name)
    measured = complete_seeds(stored.name, stored.rows)
    parts = tuple(module.contrasts(measured)) if measured else ()
    seconds = sum(row.get("processor_seconds", 0.0) for row in stored.rows.values())
    part = deciding(parts) if parts else None
    return ClaimResult(
        stored.name,
        module.DECK,
        module.CLAIM,
        conclude(parts),
        None if part is None else part.mean,
        None if part is None else _finite(part.interval),
        len(measured),
        round(seconds / 60, 1),
        parts,
    )


def _finite(interval: tuple[float, float]) -> tuple[float, float] | None:
    return interval if all(map(math.isfinite, interval)) else None


def read_all(folder: Path) -> list[ClaimResult]:
    """All claims of the registry, in the order of their names."""
    if not folder.is_dir():
        raise DataError("there are no stored results.", got=f"{folder} is no folder.", hint="--out FOLDER.")
    return [summarise(read_result(folder, name)) for name in plug.entries(CLAIMS)]
