"""An explanation of a text as one interactive offline page, all in a single file."""

from __future__ import annotations

import base64
import json
import zlib
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.inspection.goat import SENTENCES, work_out
from vitrail.inspection.text_explanation import PlacePrediction, TextExplanation, TextToken
from vitrail.inspection.text_trace import AttentionMap
from vitrail.pages import render_template

SCRIPTS = ("make.js", "overlay.js", "text_maps.js", "text_matrix.js", "text_view.js")  # in this order
TITLES = {
    "self": "Self-attention",
    "cross": "Alignment (cross-attention)",
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
}
SEQUENCES = {
    "self": ("text", "text"),
    "cross": ("written", "source"),
    "encoder": ("source", "source"),
    "decoder": ("target", "target"),
}
"""The tokens that attend, and those that they attend to."""
MODELS = {"language": "language model", "masked_language": "masked language model", "translation": "translator"}
MAX_TITLE = 80  # characters


def render(explanation: TextExplanation) -> str:
    """The page of one text."""
    folder = files("vitrail.inspection")
    data = json.dumps(page_data(explanation), separators=(",", ":"), allow_nan=False)
    return render_template(
        "vitrail.inspection",
        "text_page.html",
        explanation=explanation,
        title=_shorten(explanation.text),
        summary=explanation.summary[:1].upper() + explanation.summary[1:],
        model=MODELS[explanation.kind],
        depth=[len(each.weights) for each in explanation.maps],
        num_tokens=len(next(iter(explanation.sequences.values()))),
        goat=[work_out(sentence) for sentence in SENTENCES],
        # Inside a script element, "<" could end it.
        data=data.replace("<", "\\u003c"),
        style=folder.joinpath("view.css").read_text(encoding="utf-8"),
        script="".join(folder.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS),
    )


def page_data(explanation: TextExplanation) -> dict[str, Any]:
    """The data of the page's script."""
    return {
        "kind": explanation.kind,
        "sequences": {name: [_token(each) for each in row] for name, row in explanation.sequences.items()},
        "maps": [_map_data(each) for each in explanation.maps],
        "predictions": [_prediction_data(each) for each in explanation.predictions],
    }


def _map_data(attention: AttentionMap) -> dict[str, Any]:
    rows, columns = SEQUENCES[attention.name]
    depth, heads, *_ = attention.weights.shape
    return {
        "name": attention.name,
        "title": TITLES[attention.name],
        "rows": rows,
        "columns": columns,
        "causal": attention.causal,
        "layers": depth,
        "heads": heads,
        "weights": _pack(attention.weights),
        "rollout": None if attention.rollout is None else _pack(attention.rollout),
    }


def _prediction_data(prediction: PlacePrediction) -> dict[str, Any]:
    actual = prediction.actual
    return {
        "place": prediction.place,
        "tokens": [[*_token(token), round(probability, 6)] for token, probability in prediction.tokens],
        "actual": None if actual is None else [*_token(actual[0]), round(actual[1], 6)],
    }


def _token(token: TextToken) -> list[int | str]:
    return [token.id, token.text]


def _pack(fractions: NDArray[np.float32]) -> str:
    """Fractions as 16-bit numbers, compressed."""
    numbers = (fractions * 65535).round().astype("<u2")
    return base64.b64encode(zlib.compress(np.ascontiguousarray(numbers).tobytes(), 6)).decode()


def _shorten(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= MAX_TITLE else words[: MAX_TITLE - 1] + "…"
