"""The explanation of a clip as an offline page: choose a class and a method; a sound can be heard."""

from __future__ import annotations

import io
import json
import wave
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail import plug
from vitrail.data.spectrogram import LOWEST
from vitrail.inspection import trace
from vitrail.inspection.clip_drawing import pool_columns, tint, viridis
from vitrail.inspection.clip_explanation import ClipExplanation, scaled
from vitrail.inspection.clip_still import draw_base, heat_image
from vitrail.inspection.data_url import data_url, image_url, png_url
from vitrail.inspection.explanation import METHODS
from vitrail.pages import render_template
from vitrail.percent import percent
from vitrail.run.predictor import calibration_of

MAX_FRAMES = 32  # on a page
MAX_COLUMNS = 480  # of what latents read
NUM_TICKS = 4  # of the time axis
LOUDEST = 32_000  # of 16-bit samples


def render(explanation: ClipExplanation) -> str:
    """The page of one clip."""
    folder = files("vitrail.inspection")
    heat = _heat_urls(explanation)
    methods = [(name, plug.load(METHODS, name).TITLE, plug.load(METHODS, name).DESCRIPTION) for name in heat]
    data = {
        "heat": heat,
        "says": {name: says for name, _, says in methods},
        "titles": {name: title for name, title, _ in methods},
        "labels": explanation.labels,
        "scores": [percent(each) for each in explanation.probabilities],
    }
    is_video = explanation.modality == "video"
    return render_template(
        "vitrail.inspection",
        "clip_page.html",
        explanation=explanation,
        patches=explanation.patches,
        seconds=explanation.patches.preprocess.seconds,
        methods=methods,
        classes=list(zip(explanation.labels, data["scores"], explanation.probabilities, strict=True)),
        frames=_frames(explanation) if is_video else [],
        base="" if is_video else png_url(draw_base(explanation)),
        sound="" if is_video else _sound_url(explanation),
        ticks=[] if is_video else _ticks(explanation.patches.preprocess.seconds),
        lowest=LOWEST,
        readings=list(_reading_urls(explanation)),
        facts=_facts(explanation),
        first=next(iter(heat)),
        heat=heat,
        # Inside a script element, "<" could end it.
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        style=folder.joinpath("view.css").read_text(encoding="utf-8"),
        script=folder.joinpath("clip_page.js").read_text(encoding="utf-8"),
    )


def _heat_urls(explanation: ClipExplanation) -> dict[str, list[list[str]]]:
    """The heat of each method and class as small images, a pixel per token: one, or one for each moment of a video."""
    urls: dict[str, list[list[str]]] = {}
    for method, heatmaps in explanation.heatmaps.items():
        urls[method] = []
        for index, heatmap in enumerate(heatmaps):
            if explanation.modality == "video":  # one scale for all moments, so that they can be compared
                urls[method].append([png_url(viridis(layer)) for layer in scaled(heatmap)])
            else:
                urls[method].append([png_url(tint(heat_image(explanation, method, index)))])
    return urls


def _frames(explanation: ClipExplanation) -> list[tuple[str, float, int]]:
    """Frames as data URLs, each with its time and the number of its heat."""
    num, rate = len(explanation.sample), explanation.patches.preprocess.rate
    shown = sorted({round(each) for each in np.linspace(0, num - 1, min(num, MAX_FRAMES))})
    return [(image_url(explanation.sample[each]), each / rate, each // explanation.patches.patch[0]) for each in shown]


def _reading_urls(explanation: ClipExplanation) -> Iterator[str]:
    """What the latents read in each stage: a row for each latent, time from left to right."""
    for weights in explanation.readings():
        over_time = weights.reshape(len(weights), -1) if weights.ndim == 2 else weights.sum(axis=1)
        if over_time.ndim > 2:  # of a video: the time is the first dimension
            over_time = weights.reshape(*weights.shape[:2], -1).sum(axis=-1)
        rows = pool_columns(over_time, MAX_COLUMNS)
        yield png_url(viridis(rows / np.maximum(rows.max(axis=1, keepdims=True), 1e-30), opaque=True))


def _sound_url(explanation: ClipExplanation) -> str:
    """What the model hears, as WAV, as loud as possible."""
    samples: NDArray[np.float32] = explanation.sample
    loud = samples / max(float(np.abs(samples).max()), 1e-9) * LOUDEST
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(explanation.patches.preprocess.rate)
        writer.writeframes(loud.round().astype("<i2").tobytes())
    return data_url("audio/wav", file.getvalue())


def _ticks(seconds: float) -> list[str]:
    digits = 0 if seconds >= 20 else 1 if seconds >= 4 else 2
    return [f"{seconds * part / NUM_TICKS:.{digits}f}" for part in range(NUM_TICKS + 1)]


def _facts(explanation: ClipExplanation) -> dict[str, Any]:
    """The numbers in the page's texts."""
    model, spec = explanation.model, explanation.model.spec
    return {
        "name": model.name or type(model).__name__,
        "latents": spec.num_latents if trace.has_latents(model) else 0,  # type: ignore[attr-defined]
        "stages": getattr(spec, "num_stages", 0),
        "depth": getattr(spec, "depth", 0),
        "heads": getattr(spec, "heads", 0),
        "width": spec.width,
        "pool": getattr(spec, "pool", "mean"),
        "num_classes": spec.num_classes,
        "multi_label": calibration_of(model).multi_label,
    }
