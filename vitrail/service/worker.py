"""The process that holds the model: it decodes, prepares, looks and explains. What may crash does so in here.

It speaks by its standard input and output (frames.py), in turns: a job, an answer.
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

from vitrail.data.decode import Pixels
from vitrail.errors import VitrailError
from vitrail.machine import num_cores
from vitrail.run.identity import facts_of
from vitrail.run.open import open_verified
from vitrail.run.predictor import Predictor, require_classifier
from vitrail.service.frames import packed, read_frame

Answer = tuple[dict[str, Any], list[bytes]]
SIDE = 960  # pixels of a picture's longer side
WARM = (1, 16, 1)  # pictures a batch, before the first request


class Worker:
    """A model, and the threads that decode for it."""

    def __init__(self, model: str, weights: str | None) -> None:
        self.model = open_verified(model, weights)
        require_classifier(self.model)
        self.predictor = Predictor(self.model)
        self.facts = facts_of(self.model, model, weights)
        self.decoders = ThreadPoolExecutor(num_cores(), thread_name_prefix="vitrail-decode")
        blank = np.zeros((*self.model.preprocess.size, self.model.preprocess.channels), dtype=np.uint8)
        for num in WARM:
            started = time.monotonic()
            self._look([blank] * num, 1)
        self.facts["seconds"] = round(time.monotonic() - started, 4)

    def predict(self, contents: Sequence[bytes], *, top: int) -> Answer:
        """What the model says to pictures; for one that cannot be read, why."""
        prepared = list(
            self.decoders.map(self._prepared, contents) if len(contents) > 1 else map(self._prepared, contents)
        )
        told = iter(self._look([each for each in prepared if not isinstance(each, dict)], top))
        return {"answers": [each if isinstance(each, dict) else next(told) for each in prepared]}, []

    def _prepared(self, content: bytes) -> Pixels | dict[str, Any]:
        preprocess = self.model.preprocess
        try:
            return preprocess.pixels(preprocess.decode(content))
        except VitrailError as error:
            return _refused("bad_image", error)

    def _look(self, pixels: Sequence[Pixels], top: int) -> list[dict[str, Any]]:
        if not pixels:
            return []
        self.predictor.top = min(top, len(self.predictor.labels))
        told = self.predictor(self.model.preprocess.normalise(np.stack(pixels)))
        wrong = {"error": {"code": "bad_image", "message": "the model's outputs are not finite.", "hint": None}}
        return [wrong if each is None else each.document() for each in told]

    def explain(self, contents: Sequence[bytes], *, form: str, method: str, about: str | None) -> Answer:
        """Where in a picture the model looks: numbers, a picture, or all that the page draws from."""
        everything = form == "view"
        try:
            found = self.model.explain(
                contents[0],
                classes=about,
                methods=self.facts["explains"] if everything else [method],
                top=5 if everything else 1,
            )
        except VitrailError as error:
            return _refused("bad_image" if type(error).__name__ == "DataError" else "bad_parameter", error), []
        if everything:
            return {"view": found.data()}, []
        heat = found.heat[method][0]
        if form == "png":
            still = io.BytesIO()
            found.laid_over(method, SIDE).save(still, "PNG")
            return {}, [still.getvalue()]
        told = {"label": found.labels[0], "confidence": round(found.probabilities[0], 6), "method": method}
        window = [round(side, 6) for side in found.window]
        return {**told, "grid": list(heat.shape), "window": window, "map": np.round(heat.astype(float), 6).tolist()}, []


def _refused(code: str, error: VitrailError) -> dict[str, Any]:
    return {"error": {"code": code, "message": f"{error.wrong} Got {error.got}".strip(), "hint": error.hint or None}}


def main() -> None:
    """Say what the model is, then answer jobs until nobody sends any."""
    warnings.filterwarnings("ignore", module=r"PIL\.")  # on large pictures and damaged EXIF, as in __main__
    for number in (signal.SIGINT, signal.SIGTERM):  # the service says when it is over, after its last answer
        signal.signal(number, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints does not come between the answers

    def send(answer: Answer) -> None:
        for part in packed(*answer):
            answers.write(part)
        answers.flush()

    asked = read_frame(sys.stdin.buffer)
    if asked is None:
        return
    try:
        worker = Worker(**asked[0])
    except VitrailError as error:
        send(({"wrong": [type(error).__name__, error.wrong, error.got, error.hint]}, []))
        return
    send(({"facts": worker.facts}, []))
    while (job := read_frame(sys.stdin.buffer)) is not None:
        verb = partial(getattr(worker, job[0].pop("verb")), job[1])
        send(verb(**job[0]))


if __name__ == "__main__":
    main()
