"""The counters of a run that its next step depends on; every checkpoint stores them in its state.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from vitrail.metric.score import fraction_error

OLD_NAMES = {
    "best_before": "previous_best_step",
    "judged_step": "evaluated_step",
    "judged_seconds": "evaluated_at",
    "returns": "rollbacks",
    "brake": "lr_factor",
}  # in checkpoints of 0.1


@dataclass(kw_only=True)
class RunProgress:
    """How far a run has come."""

    step: int = 0
    best: tuple[float, float, float, int] | None = None
    """The best score: its value, standard error, loss and number of samples."""
    best_step: int = 0
    previous_best_step: int = 0
    """The best step when the previous checkpoint was written."""
    evaluated_step: int = -1
    stale: int = 0
    """Evaluations since the best one."""
    rollbacks: int = 0
    lr_factor: float = 1.0
    """Multiplies the learning rate; smaller after each rollback."""
    loss_sum: float = 0.0
    """Over the steps since the last line of metrics."""
    num_losses: int = 0
    guard: dict[str, list[float]] = field(default_factory=dict)
    metrics_bytes: int = 0
    """The length of metrics.jsonl."""
    seconds: float = 0.0
    evaluated_at: float = 0.0
    """The clock's seconds at the last evaluation."""
    evaluation_seconds: float = 0.0
    """Spent on all evaluations together."""

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Read a checkpoint's state.json, also under the field names of version 0.1."""
        fields = {OLD_NAMES.get(name, name): value for name, value in state.items()}
        if fields.get("best") is not None and len(fields["best"]) == 3:  # before 0.3: a fraction, its loss and number
            value, loss, n = fields["best"]
            fields["best"] = (value, fraction_error(value, n), loss, n)
        return cls(**fields)

    @property
    def training_seconds(self) -> float:
        """Seconds spent on steps."""
        return self.seconds - self.evaluation_seconds
