"""Builds the exports of a model one by one, the most promising first, within limits of accuracy and time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitrail import plug
from vitrail.errors import ExportError
from vitrail.exports.build import FORMATS, Build, BuildContext, build, missing_packages
from vitrail.exports.cost import Attempt, CostEstimator
from vitrail.exports.proof import SECONDS, Fidelity, Speed
from vitrail.exports.sensitivity import quantizable_layers
from vitrail.percent import percent

Prefer = Literal["latency", "throughput"]
NUM_FLOAT_LAYERS = (2, 4, 8, 12)  # in an int8 export that loses too much, attempt by attempt
MAX_FLOAT_FRACTION = 0.25  # of all layers
LARGE_DROP = 10  # times the limit: a few layers in float will not help, so the most allowed are tried at once
SLOWER = 1.2  # times the fastest so far: layers in float would make it slower still


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One format and precision: how accurate and how fast it is, or why it was rejected or not tried."""

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


def available_formats() -> list[tuple[str, str]]:
    """Every format and precision whose packages are installed."""
    return [
        (name, precision)
        for name in plug.entries(FORMATS)
        for precision in plug.load(FORMATS, name).PRECISIONS
        if not missing_packages(name, precision)
    ]


def build_all(
    context: BuildContext, choices: Sequence[tuple[str, str]], folder: Path, *, speed_seconds: float = SECONDS
) -> tuple[list[Build], list[Candidate]]:
    """Build every format and precision that fits the time; return those within the accuracy limit and the rejected.

    If none is within the limit, raise an error.
    """
    search = _Search(context, choices, folder, speed_seconds)
    search.run()
    if not search.builds:
        raise ExportError(
            f"no export loses at most {100 * context.max_drop:g} points.",
            got=search.rejected[0].refused if search.rejected else "no format whose packages are installed.",
            hint="--max-drop, or more --minutes." if context.budget.limited else "--max-drop.",
        )
    return search.builds, search.rejected


class _Search:
    """The attempts still to make and the results so far."""

    def __init__(
        self, context: BuildContext, choices: Sequence[tuple[str, str]], folder: Path, speed_seconds: float
    ) -> None:
        self.context, self.folder, self.single = context, folder, len(choices) == 1
        self.costs = CostEstimator(context, speed_seconds)
        self.queue = [Attempt(*choice) for choice in choices]
        self.builds: list[Build] = []
        self.rejected: list[Candidate] = []
        self.too_lossy: dict[str, list[tuple[Fidelity, tuple[str, ...]]]] = {}

    def run(self) -> None:
        """Make all attempts that fit."""
        while self.queue:
            attempt = min(self.queue, key=self._priority)
            self.queue.remove(attempt)
            shortage = self.context.budget.shortage(self.costs.estimate(attempt), reserved=self._reserved())
            if shortage and not self._is_required(attempt):
                number = f"{attempt.num_float} layers in float " if attempt.num_float else ""
                self._give_up(attempt, f"{number}not tried: {shortage}")
            else:
                self._try(attempt)

    def _priority(self, attempt: Attempt) -> tuple[bool, bool, float]:
        """fp32 first, since it is cheap and loses nothing; further attempts last; else by expected speed."""
        expected = self.costs.estimate_seconds_per_image(attempt)
        return attempt.precision != "fp32", attempt.num_float > 0, expected

    def _is_required(self, attempt: Attempt) -> bool:
        """Until there is a result, fp32 and an export that is the only choice are built even if time is short."""
        return not self.builds and not attempt.num_float and (self.single or attempt.precision == "fp32")

    def _reserved(self) -> float:
        """The seconds set aside to time PyTorch and the builds so far."""
        return self.costs.estimate_timing(1 + len(self.builds))

    def _try(self, attempt: Attempt) -> None:
        self.context.log(self._announcement(attempt))
        layers = tuple(self.context.sensitive_layers[: attempt.num_float]) if attempt.num_float else ()
        folder = self.folder / f"{attempt.format}-{attempt.precision}"
        folder.mkdir(exist_ok=True)
        reserved = None if self._is_required(attempt) else self._reserved() + self.costs.estimate_timing(1)
        try:
            result = build(
                self.context, attempt.format, attempt.precision, folder, float_layers=layers, reserved=reserved
            )
        except ExportError as error:
            self._reject(attempt, error)
            return
        self.costs.record(result)
        self.context.log(f"{attempt.description}: {self._findings(result)}")
        if result.fidelity.drop <= self.context.max_drop:
            self.builds.append(result)
        else:
            self.too_lossy.setdefault(attempt.name, []).append((result.fidelity, layers))
            self._retry(attempt, result)

    def _retry(self, attempt: Attempt, result: Build) -> None:
        """Queue an int8 export that loses too much again, with more layers in float, unless that is pointless."""
        num_float = self._next_num_float(attempt)
        fastest = min(self.builds, key=lambda each: each.seconds_per_image, default=None)
        if num_float is None:
            self._give_up(attempt, "")
        elif fastest is not None and result.seconds_per_image > SLOWER * fastest.seconds_per_image:
            self._give_up(attempt, f"Layers in float not tried: already slower than {fastest.name}")
        else:
            self.queue.append(attempt._replace(num_float=num_float))

    def _next_num_float(self, attempt: Attempt) -> int | None:
        if attempt.precision != "int8":
            return None
        num_layers = len(quantizable_layers(self.context.tracer.graph.model))
        numbers = [num for num in NUM_FLOAT_LAYERS if num <= MAX_FLOAT_FRACTION * num_layers]
        without_float, _ = self.too_lossy[attempt.name][0]
        if without_float.drop > LARGE_DROP * max(self.context.max_drop, 0.005):
            numbers = numbers[-1:]
        return next((num for num in numbers if num > attempt.num_float), None)

    def _give_up(self, attempt: Attempt, reason: str) -> None:
        if attempt.name in self.too_lossy:
            self._reject(attempt, self._loss_error(attempt, reason))
        else:
            self._reject(attempt, ExportError(reason))

    def _reject(self, attempt: Attempt, error: ExportError) -> None:
        if self.single:
            raise error
        reason = f"{error.wrong} {error.got}".strip()
        self.rejected.append(Candidate(format=attempt.format, precision=attempt.precision, refused=reason))
        self.context.log(reason if reason.startswith(attempt.name) else f"{attempt.name}: {reason}")

    def _loss_error(self, attempt: Attempt, reason: str) -> ExportError:
        fidelity, layers = min(self.too_lossy[attempt.name], key=lambda each: each[0].drop)
        lost = f"{percent(1 - fidelity.agreement)} of labels"
        if fidelity.top1_before is not None and fidelity.top1_after is not None:
            lost = f"{100 * fidelity.drop:.2f} points on {fidelity.n:,} images"
            lost += f" ({percent(fidelity.top1_before)} before, {percent(fidelity.top1_after)} after)"
        lost += f" with {len(layers)} layers in float." if layers else "."
        if attempt.precision == "int8" and self._may_rank_layers():
            lost += f" Most sensitive layers: {', '.join(self.context.sensitive_layers[:4])}."
        return ExportError(
            f"{attempt.name} loses more than {100 * self.context.max_drop:g} points.",
            got=f"{lost} {reason[:1].upper()}{reason[1:]}." if reason else lost,
            hint="calibration images like those it will see (--calibration), another --precision, or --max-drop.",
        )

    def _may_rank_layers(self) -> bool:
        """Whether to name the most sensitive layers: if they are known, or for an export that has failed altogether."""
        seconds = self.costs.estimate_ranking()
        return seconds == 0 or (self.single and not self.context.budget.shortage(seconds, reserved=self._reserved()))

    def _announcement(self, attempt: Attempt) -> str:
        """What is built next, how long it may take, and what is left to try."""
        text = f"Building {attempt.description}"
        if self.context.budget.limited:
            about = f"about {self.costs.estimate(attempt):.0f} s; " if self.costs.write_seconds else ""
            text += f" ({about}{max(0.0, self.context.budget.left()):.0f} s left)"
        later = [each.description for each in sorted(self.queue, key=self._priority)]
        return f"{text}; then {', '.join(later)}" if later else text

    def _findings(self, result: Build) -> str:
        """How a build compares with PyTorch."""
        fidelity, context = result.fidelity, self.context
        text = f"same label on {percent(fidelity.agreement, 2)} of {fidelity.n:,} images"
        if fidelity.top1_before is not None and fidelity.top1_after is not None:
            text += f", accuracy {percent(fidelity.top1_after, 2)} (PyTorch {percent(fidelity.top1_before, 2)})"
        speeds = (1000 * result.seconds_per_image, 1000 * context.seconds_per_image)
        return f"{text}, {speeds[0]:.1f} ms per image in batches (PyTorch {speeds[1]:.1f} ms)"


def sort_key(speed: Speed, prefer: Prefer) -> float:
    """Lower is better."""
    return speed.latency_ms if prefer == "latency" else -speed.throughput


def to_candidate(build: Build, speed: Speed, reference: Speed) -> Candidate:
    """The row of a build that was timed."""
    fidelity = build.fidelity
    return Candidate(
        format=build.format,
        precision=build.precision,
        n=fidelity.n,
        agreement=fidelity.agreement,
        max_logit_diff=fidelity.max_logit_diff,
        top1_after=fidelity.top1_after,
        latency_ms=speed.latency_ms,
        throughput=speed.throughput,
        speedup=reference.latency_ms / speed.latency_ms,
        size_mb=sum(file.stat().st_size for file in build.file.parent.iterdir()) / 1e6,
    )
