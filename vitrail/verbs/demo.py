"""The demo: training on a bundled dataset."""

from __future__ import annotations

from pathlib import Path

from vitrail.training.view import View
from vitrail.verbs.train import Training, train

# Digits must not be flipped, and 8 x 8 pixels need no deep model.
SETTINGS = (
    *("epochs=20", "batch_size=64", "model.depth=2"),
    *("augment.flip_rate=0.0", "augment.crop=resized", "augment.scale=[0.7, 1.0]"),
)


def demo(*, run: str | Path = "runs/demo", view: View | None = None) -> Training:
    """Train on scikit-learn's digits and test the model on held-out ones."""
    return train("digits", recipe="scratch", run=run, settings=SETTINGS, command="vitrail demo", view=view)
