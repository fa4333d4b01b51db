"""Explains a prediction for a clip: heat over time, over time and frequency, or over space and time."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from vitrail import plug
from vitrail.contract import Classifier
from vitrail.data.sound import sound_info
from vitrail.data.video import video_info
from vitrail.errors import InspectionError
from vitrail.inspection import trace
from vitrail.inspection.clip_patches import ClipPatches, check_modality, new_patches
from vitrail.inspection.explanation import TOP, find_evidence, iter_attention, select_methods
from vitrail.percent import percent
from vitrail.run.predictor import input_preprocess

ClipInput = str | Path | bytes


@dataclass(frozen=True, kw_only=True)
class ClipExplanation:
    """A model's prediction for one sound or video, with heatmaps of the evidence."""

    name: str
    model: Classifier = field(repr=False)
    modality: str
    """`sound` or `video`."""
    patches: ClipPatches = field(repr=False)
    """What the model takes of the clip, and how it cuts it into tokens."""
    clip_seconds: float
    """The length of the whole clip."""
    inputs: Float[Tensor, "1 C *size"] = field(repr=False)
    """The preprocessed clip that the model receives."""
    classes: tuple[int, ...]
    """The explained classes: the requested ones and the top one, or the top ones."""
    labels: tuple[str, ...]
    probabilities: tuple[float, ...]
    """Of the explained classes."""
    heatmaps: dict[str, Float[NDArray[np.float32], "K ..."]] = field(repr=False)
    """Each method's heatmap for each class, on the token grid: [time], [frequency, time] or [time, rows, columns]."""

    @property
    def sample(self) -> NDArray[Any]:
        """The waveform that the model hears, or the frames [T Y X 3] that it sees."""
        return self.patches.sample

    @property
    def prediction(self) -> tuple[str, float]:
        """The top class and its probability."""
        return max(zip(self.labels, self.probabilities, strict=True), key=lambda pair: pair[1])

    @property
    def summary(self) -> str:
        """The prediction in words."""
        label, probability = self.prediction
        return f"{label}, {percent(probability)}"

    def attention(self) -> Iterator[Float[NDArray[np.float32], "H N M"]]:
        """The attention weights of each block in turn; for a Perceiver, each stage's from latents to inputs."""
        return iter_attention(self.model, self.inputs)

    def readings(self) -> Iterator[Float[NDArray[np.float32], "N ..."]]:
        """What each latent of a Perceiver reads in each stage, the mean of all heads; nothing for other models."""
        if trace.has_latents(self.model):
            for weights in self.attention():
                yield weights.mean(axis=0).reshape(weights.shape[1], *self.patches.grid)

    def figure(self) -> Any:
        """The clip and the heatmaps as a matplotlib figure."""
        return plug.import_from("vitrail.inspection.clip_still", "draw")(self)

    def page(self) -> str:
        """The offline page."""
        return plug.import_from("vitrail.inspection.clip_page", "render")(self)

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{html.escape(self.page())}" style="border:0;height:44rem;width:100%"></iframe>'


def explain_clip(
    model: Classifier,
    clip: ClipInput,
    *,
    classes: Sequence[str | int] | str | int | None = None,
    methods: Sequence[str] | None = None,
    top: int = TOP,
    name: str | None = None,
) -> ClipExplanation:
    """Explain a model's prediction for a sound or a video: a path or encoded bytes; see `vitrail.explain`."""
    selected = select_methods(model, methods)
    if not isinstance(clip, str | Path | bytes):
        raise InspectionError(
            "this is not a clip.", got=f"a {type(clip).__name__}.", hint="the path of a sound or a video, or its bytes."
        )
    name = name or ("clip" if isinstance(clip, bytes) else str(clip))
    preprocess: Any = input_preprocess(model)
    check_modality(name, preprocess)
    content = clip if isinstance(clip, bytes) else Path(clip)
    patches = new_patches(content, name, model.name or type(model).__name__, model.spec, preprocess)
    inputs = preprocess.normalise(patches.sample[None]).to(next(model.parameters()))
    evidence = find_evidence(model, inputs, classes=classes, methods=selected, top=top)
    return ClipExplanation(
        name=Path(name).name,
        model=model,
        modality=preprocess.modality,
        patches=patches,
        clip_seconds=_seconds(content, name, preprocess.modality),
        inputs=inputs,
        **evidence._asdict(),
    )


def _seconds(content: Path | bytes, name: str, modality: str) -> float:
    if modality == "video":
        return video_info(content, name=name).seconds
    info = sound_info(content, name=name)
    return info.num_samples / info.rate


def scaled(heatmap: NDArray[np.float32]) -> NDArray[np.float32]:
    """A heatmap from 0 to 1, by its maximum."""
    return heatmap / max(float(heatmap.max()), 1e-30)
