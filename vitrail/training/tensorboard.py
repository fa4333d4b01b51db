"""TensorBoard events, on request."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from vitrail.errors import SpecError


class TensorBoard:
    """Writes events to the folder `tensorboard` of a run."""

    def __init__(self, run: Path) -> None:
        self.writer = writer_class()(str(run / "tensorboard"))

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write the scalars of a step."""
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close."""
        self.writer.close()


def writer_class() -> type:
    """Import PyTorch's writer, which needs the package tensorboard."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise SpecError(
            "TensorBoard events need the package tensorboard.",
            got="tensorboard=true without it.",
            hint="pip install tensorboard, or metrics.jsonl, which is always written.",
        ) from None
    return SummaryWriter
