"""The settings that all recipes for images share."""

from __future__ import annotations

from vitrail.data.augment import Augment
from vitrail.spec import PartialFraction
from vitrail.training.settings import Settings


class ImageSettings(Settings):
    """The loop's settings, and those of augmentation and labels."""

    label_smoothing: PartialFraction = 0.0
    augment: Augment = Augment()
