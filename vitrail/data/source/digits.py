"""The built-in dataset: scikit-learn's 1,797 handwritten digits of 8 x 8 pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vitrail.data.arrays import Part, open_arrays
from vitrail.data.table import SPLITS, Table

TEST_EVERY = 5
MAX_PIXEL = 16  # scikit-learn's digits range from 0 to 16


def recognise(location: str) -> bool:
    """Whether this is the name `digits`, and not an existing file or folder of that name."""
    return location.casefold() == "digits" and not Path(location).exists()


def open_source(location: str) -> Table:
    """The digits in greyscale; every fifth is a test image."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.rint(digits.images * (255 / MAX_PIXEL)).astype(np.uint8)
    test = np.arange(len(pixels)) % TEST_EVERY == TEST_EVERY - 1
    parts = [
        Part(SPLITS.index(name), pixels[rows], digits.target[rows]) for name, rows in (("train", ~test), ("test", test))
    ]
    return open_arrays(parts, location, root=None, class_names=None)
