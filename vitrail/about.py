"""What is known about a model besides its weights: one object, which travels with it from file to service."""

from __future__ import annotations

from dataclasses import dataclass, field

from vitrail.calibration import Calibration
from vitrail.data.transform import Preprocess


@dataclass(frozen=True, kw_only=True)
class About:
    """Name, preprocessing, labels and calibration of a model, and how its weights were adapted."""

    kind: str = "classification"
    """The kind of run that it comes from, an entry of `vitrail/kind`."""
    name: str = ""
    preprocess: Preprocess | None = None
    """None for inputs that are not images of one or three channels."""
    labels: tuple[str, ...] = ()
    """The names of the classes; of the predicted quantity, for regression."""
    calibration: Calibration = field(default_factory=Calibration)
    changes: tuple[str, ...] = ()
