"""The process that holds the model: it decodes, preprocesses, predicts and explains, so that only it can crash.

It reads jobs from standard input and writes results to standard output (vitrail/frames.py), one at a time.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from vitrail.contract import Classifier
from vitrail.data.decode import Pixels
from vitrail.errors import VitrailError
from vitrail.machine import num_cores
from vitrail.run.identity import describe_model
from vitrail.run.open import open_verified
from vitrail.run.predictor import Predictor, require_classification, require_classifier
from vitrail.frames import pack_frame, read_frame

Result = tuple[dict[str, Any], list[bytes]]
PNG_SIDE = 960  # longer side in pixels
WARMUP_BATCHES = (1, 16, 1)  # batch sizes before the first request; the last one is timed


class Worker:
    """A model and its decoding threads."""

    def __init__(self, model: str, weights: str | None) -> None:
        self.model = open_verified(model, weights)
        require_classification(self.model, "vitrail serve")
        require_classifier(self.model)
        self.predictor = Predictor(self.model)
        self.facts = describe_model(self.model, model, weights)
        self.decoders = ThreadPoolExecutor(num_cores(), thread_name_prefix="vitrail-decode")
        blank = np.zeros((*self.model.preprocess.size, self.model.preprocess.channels), dtype=np.uint8)
        for num in WARMUP_BATCHES:
            started = time.monotonic()
            self._classify([blank] * num, 1)
        self.facts["seconds"] = round(time.monotonic() - started, 4)

    def predict(self, contents: Sequence[bytes], *, top: int) -> Result:
        """Predict a batch of encoded images; an image that cannot be read gets an error."""
        decoded = list(
            self.decoders.map(self._preprocess, contents) if len(contents) > 1 else map(self._preprocess, contents)
        )
        predictions = iter(self._classify([each for each in decoded if not isinstance(each, dict)], top))
        return {"predictions": [each if isinstance(each, dict) else next(predictions) for each in decoded]}, []

    def _preprocess(self, content: bytes) -> Pixels | dict[str, Any]:
        preprocess = self.model.preprocess
        try:
            return preprocess.read(content, name="this file")
        except VitrailError as error:
            return _error_document("bad_image", error)

    def _classify(self, pixels: Sequence[Pixels], top: int) -> list[dict[str, Any]]:
        if not pixels:
            return []
        self.predictor.top = min(top, len(self.predictor.labels))
        predictions = self.predictor(self.model.preprocess.normalise(np.stack(pixels)))
        not_finite = {"error": {"code": "bad_image", "message": "the model's outputs are not finite.", "hint": None}}
        return [not_finite if each is None else each.document() for each in predictions]

    def explain(self, contents: Sequence[bytes], *, form: str, method: str, class_name: str | None) -> Result:
        """Explain one image: as numbers, a PNG, or data for the interactive view."""
        assert isinstance(self.model, Classifier), "an exported model lists no methods to ask for"
        interactive = form == "view"
        try:
            explanation = self.model.explain(
                contents[0],
                classes=class_name,
                methods=self.facts["explains"] if interactive else [method],
                top=5 if interactive else 1,
            )
        except VitrailError as error:
            return _error_document("bad_image" if type(error).__name__ == "DataError" else "bad_parameter", error), []
        if interactive:
            return {"view": explanation.data()}, []
        heatmap = explanation.heatmaps[method][0]
        if form == "png":
            png = io.BytesIO()
            explanation.overlay(method, PNG_SIDE).save(png, "PNG")
            return {}, [png.getvalue()]
        return {
            "label": explanation.labels[0],
            "confidence": round(explanation.probabilities[0], 6),
            "method": method,
            "grid": list(heatmap.shape),
            "window": [round(side, 6) for side in explanation.window],
            "map": np.round(heatmap.astype(float), 6).tolist(),
        }, []


def _error_document(code: str, error: VitrailError) -> dict[str, Any]:
    return {"error": {"code": code, "message": f"{error.wrong} Got {error.got}".strip(), "hint": error.hint or None}}


def main() -> None:
    """Load the model, report its facts, then run jobs until the input ends."""
    warnings.filterwarnings("ignore", module=r"PIL\.")  # on large images and damaged EXIF, as in __main__
    for number in (signal.SIGINT, signal.SIGTERM):  # the service stops its worker after the last response
        signal.signal(number, signal.SIG_IGN)
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps what libraries print out of the results

    def send(result: Result) -> None:
        for part in pack_frame(*result):
            output.write(part)
        output.flush()

    first = read_frame(sys.stdin.buffer)
    if first is None:
        return
    try:
        worker = Worker(**first[0])
    except VitrailError as error:
        send(({"error": [type(error).__name__, error.wrong, error.got, error.hint]}, []))
        return
    send(({"facts": worker.facts}, []))
    while (job := read_frame(sys.stdin.buffer)) is not None:
        verb = partial(getattr(worker, job[0].pop("verb")), job[1])
        send(verb(**job[0]))


if __name__ == "__main__":
    main()
