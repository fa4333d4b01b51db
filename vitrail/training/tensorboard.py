"""Events for TensorBoard, on request."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from vitrail.errors import SpecError


class TensorBoard:
    """A folder of events beside the metrics."""

    def __init__(self, run: Path) -> None:
        self.writer = writer_class()(str(run / "tensorboard"))

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        """The numbers of a step."""
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what waits."""
        self.writer.close()


def writer_class() -> type:
    """PyTorch's writer, which needs TensorBoard's own package."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise SpecError(
            "events need the package tensorboard.",
            got="tensorboard=true without it.",
            hint="pip install tensorboard, or metrics.jsonl, which is always written.",
        ) from None
    return SummaryWriter
