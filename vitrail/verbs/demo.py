"""The main job on data that comes along."""

from __future__ import annotations

from pathlib import Path

from vitrail.training.view import View
from vitrail.verbs.train import Training, train

# Digits must not be mirrored, and 8 x 8 pixels need no deep model.
SETTINGS = (
    *("epochs=20", "batch_size=64", "model.depth=2"),
    *("augment.flip_rate=0.0", "augment.crop=resized", "augment.scale=[0.7, 1.0]"),
)


def demo(*, run: str | Path = "runs/demo", view: View | None = None) -> Training:
    """Train on the embedded digits and judge the model on those that were put aside."""
    return train("digits", recipe="scratch", run=run, settings=SETTINGS, command="vitrail demo", view=view)
