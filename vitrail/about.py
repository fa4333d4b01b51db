"""What is known about a model besides its weights: one object, which travels with it from file to service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vitrail.calibration import Calibration
from vitrail.data.preparation import InputPreprocess


@dataclass(frozen=True, kw_only=True)
class About:
    """Name, preprocessing, labels and calibration of a model, and how its weights were adapted."""

    kind: str = "classification"
    """The kind of run that it comes from, an entry of `vitrail/kind`."""
    name: str = ""
    preprocess: InputPreprocess | None = None
    """Of images, sounds or videos; None for images of other than one or three channels, and for several inputs."""
    inputs: Mapping[str, InputPreprocess] = field(default_factory=dict)
    """The preprocessing of each input but text, for a model of several."""
    labels: tuple[str, ...] = ()
    """The names of the classes; of the predicted quantity, for regression."""
    calibration: Calibration = field(default_factory=Calibration)
    changes: tuple[str, ...] = ()
