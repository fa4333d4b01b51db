"""The counters of a run that its next step depends on; every checkpoint stores them in its state.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, NonNegativeFloat, TypeAdapter, ValidationError

from vitrail import documents
from vitrail.metric.score import fraction_error
from vitrail.run.schema import Count, Number
from vitrail.training.guard import WINDOW

OLD_NAMES = {
    "best_before": "previous_best_step",
    "judged_step": "evaluated_step",
    "judged_seconds": "evaluated_at",
    "returns": "rollbacks",
    "brake": "lr_factor",
}  # in checkpoints of 0.1

GuardKey = Annotated[str, Field(pattern="^(recent|lowest|first)$")]
Losses = Annotated[list[Number], Field(max_length=WINDOW)]


@dataclass(kw_only=True)
class RunProgress:
    """How far a run has come."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid")

    step: Count = 0
    best: tuple[float, float, float, Count] | None = None
    """The best score: its value, standard error (infinite for one sample), loss and number of samples."""
    best_step: Count = 0
    previous_best_step: Count = 0
    """The best step when the previous checkpoint was written."""
    evaluated_step: Annotated[int, Field(ge=-1)] = -1
    stale: Count = 0
    """Evaluations since the best one."""
    rollbacks: Count = 0
    lr_factor: NonNegativeFloat = 1.0
    """Multiplies the learning rate; smaller after each rollback."""
    loss_sum: Number = 0.0
    """Over the steps since the last line of metrics."""
    num_losses: Count = 0
    guard: dict[GuardKey, Losses] = field(default_factory=dict)
    metrics_bytes: Count = 0
    """The length of metrics.jsonl."""
    seconds: Number = 0.0
    evaluated_at: Number = 0.0
    """The clock's seconds at the last evaluation."""
    evaluation_seconds: Number = 0.0
    """Spent on all evaluations together."""

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> RunProgress:
        """Read a checkpoint's state.json, also under the field names of version 0.1; ValueError if it is another."""
        fields = {OLD_NAMES.get(name, name): value for name, value in state.items()}
        best = fields.get("best")
        if isinstance(best, list) and len(best) == 3:  # before 0.3: a fraction, its loss and number
            value, loss, n = best
            fields["best"] = [value, _old_error(value, n), loss, n]
        try:
            return _schema().validate_json(json.dumps(fields))
        except ValidationError as error:
            raise ValueError(documents.describe(error)) from None

    @property
    def training_seconds(self) -> float:
        """Seconds spent on steps."""
        return self.seconds - self.evaluation_seconds


@cache
def _schema() -> TypeAdapter[RunProgress]:
    return TypeAdapter(RunProgress)


def _old_error(value: object, n: object) -> float | None:
    """The standard error of a best score of version 0.1 or 0.2; None if it is none."""
    valid = isinstance(value, float) and 0 <= value <= 1 and isinstance(n, int) and n > 0
    return fraction_error(value, n) if valid else None  # type: ignore[arg-type]
