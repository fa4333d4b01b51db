"""The process that holds the model: it decodes, preprocesses, predicts and explains, so that only it can crash.

It runs one job at a time (jobs.py).
"""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from vitrail.contract import Classifier
from vitrail.data.decode import Pixels
from vitrail.errors import VitrailError
from vitrail.machine import num_cores
from vitrail.run.identity import describe_model
from vitrail.run.open import open_verified
from vitrail.run.predictor import Predictor, require_classification, require_classifier
from vitrail.service.jobs import Result, error_document, run_jobs

PNG_SIDE = 960  # longer side in pixels
WARMUP_BATCHES = (1, 16, 1)  # batch sizes before the first request; the last one is timed


class Worker:
    """A model and its decoding threads."""

    def __init__(self, model: str, weights: str | None) -> None:
        self.model = open_verified(model, weights)
        require_classification(self.model, "vitrail serve")
        require_classifier(self.model)
        self.predictor = Predictor(self.model)
        self.preprocess = self.model.preprocess
        self.facts = describe_model(self.model, model, weights)
        self.decoders = ThreadPoolExecutor(num_cores(), thread_name_prefix="vitrail-decode")
        self.shape = (*self.preprocess.size, self.preprocess.channels)
        blank = np.zeros(self.shape, dtype=np.uint8)
        for num in WARMUP_BATCHES:
            started = time.monotonic()
            self._classify([blank] * num, 1)
        self.facts["seconds"] = round(time.monotonic() - started, 4)

    def predict(self, contents: Sequence[bytes], *, top: int, prepared: Sequence[int] = ()) -> Result:
        """Predict a batch of encoded images, of which some are `prepared`; one that cannot be read gets an error."""
        read = self.decoders.map if len(contents) > 1 else map
        decoded = list(read(self._preprocess, contents, [number in prepared for number in range(len(contents))]))
        predictions = iter(self._classify([each for each in decoded if not isinstance(each, dict)], top))
        return {"predictions": [each if isinstance(each, dict) else next(predictions) for each in decoded]}, []

    def _preprocess(self, content: bytes, prepared: bool) -> Pixels | dict[str, Any]:
        if prepared:
            return np.frombuffer(content, dtype=np.uint8).reshape(self.shape)
        try:
            return self.preprocess.read(content, name="this file")
        except VitrailError as error:
            return error_document("bad_image", error)

    def _classify(self, pixels: Sequence[Pixels], top: int) -> list[dict[str, Any]]:
        if not pixels:
            return []
        self.predictor.top = min(top, len(self.predictor.labels))
        predictions = self.predictor(self.preprocess.normalise(np.stack(pixels)))
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
            return error_document("bad_image" if type(error).__name__ == "DataError" else "bad_parameter", error), []
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


if __name__ == "__main__":
    run_jobs(Worker)
