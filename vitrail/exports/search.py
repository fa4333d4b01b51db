"""All forms of a model against each other: who holds the budget, and who is the fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitrail import plug
from vitrail.errors import ExportError
from vitrail.exports.build import FORMATS, Made, Trial, absent, make
from vitrail.exports.proof import Speed

Prefer = Literal["latency", "throughput"]


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One form of the model: how true and how fast, or why not."""

    format: str
    precision: str
    n: int = 0
    agreement: float | None = None
    max_logit_diff: float | None = None
    top1_after: float | None = None
    latency_ms: float | None = None
    throughput: float | None = None
    speedup: float | None = None
    size_mb: float | None = None
    refused: str = ""


def all_forms() -> list[tuple[str, str]]:
    """Every format and precision that this machine has the packages for."""
    return [
        (form, precision)
        for form in plug.entries(FORMATS)
        for precision in plug.load(FORMATS, form).PRECISIONS
        if not absent(form, precision)
    ]


def make_all(trial: Trial, chosen: Sequence[tuple[str, str]], room: Path) -> tuple[list[Made], list[Tried]]:
    """All that hold the budget, and why the others do not; if none does, that is the error."""
    made: list[Made] = []
    refused: list[Tried] = []
    for form, precision in chosen:
        folder = room / f"{form}-{precision}"
        folder.mkdir()
        try:
            made.append(make(trial, form, precision, folder))
        except ExportError as error:
            if len(chosen) == 1:
                raise
            refused.append(Tried(format=form, precision=precision, refused=f"{error.wrong} {error.got}"))
    if not made:
        raise ExportError(
            "no format holds the budget.", got=refused[0].refused if refused else "none installed.", hint="--max-drop."
        )
    return made, refused


def name_of(made: Made) -> str:
    """A form in words."""
    return f"{made.format} {made.precision}"


def rank(speed: Speed, prefer: Prefer) -> float:
    """The less the better."""
    return speed.latency_ms if prefer == "latency" else -speed.throughput


def row_of(made: Made, speed: Speed, reference: Speed) -> Tried:
    """One that was measured."""
    faith = made.faith
    return Tried(
        format=made.format,
        precision=made.precision,
        n=faith.n,
        agreement=faith.agreement,
        max_logit_diff=faith.max_logit_diff,
        top1_after=faith.top1_after,
        latency_ms=speed.latency_ms,
        throughput=speed.throughput,
        speedup=reference.latency_ms / speed.latency_ms,
        size_mb=sum(file.stat().st_size for file in made.file.parent.iterdir()) / 1e6,
    )
