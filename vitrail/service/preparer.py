"""The process that decodes costly images, so that those of other clients do not wait for them in the same batch.

It takes one image at a time and less of the processor than the model does. What headers cannot bound is decoded in a
guard process of its own (vitrail/data/guard.py), which is ended and replaced.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from vitrail.data.transform import Preprocess
from vitrail.errors import VitrailError
from vitrail.service.jobs import Result, error_document, run_jobs

NICENESS = 10


class Preparer:
    """Turns encoded images into what a model sees."""

    def __init__(self, preprocess: str) -> None:
        if hasattr(os, "nice"):
            os.nice(NICENESS)
        self.preprocess = Preprocess.model_validate_json(preprocess)
        self.facts: dict[str, Any] = {}

    def read(self, contents: Sequence[bytes]) -> Result:
        """The pixels of one image, and how long they took; or an error."""
        started = time.monotonic()
        try:
            found, pixels = {}, [self.preprocess.read(contents[0], name="this file").tobytes()]
        except VitrailError as error:
            found, pixels = error_document("bad_image", error), []
        return {**found, "seconds": time.monotonic() - started}, pixels


if __name__ == "__main__":
    run_jobs(Preparer)
