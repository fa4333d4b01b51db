"""Explains a prediction: one image, its top classes, and heatmaps of the evidence for each of them."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from vitrail import plug
from vitrail.contract import Classifier
from vitrail.data.decode import Pixels, as_pixels, decode_image, orient_image, orientation_of, read_file, to_rgb
from vitrail.data.table import IMAGE
from vitrail.data.transform import Preprocess
from vitrail.errors import InspectionError
from vitrail.inspection import latents, trace
from vitrail.inspection.adopt import adopt
from vitrail.inspection.class_names import class_index
from vitrail.inspection.similarity import iter_similarity, trace_tokens
from vitrail.percent import percent
from vitrail.run.predictor import calibration_of, labels_of

if TYPE_CHECKING:
    from vitrail.inspection.clip_explanation import ClipExplanation

METHODS = "vitrail.inspection.method"
TOP = 5
ImageInput = str | Path | bytes | Image.Image | Pixels


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """A model's prediction for one image, with heatmaps of the evidence."""

    name: str
    model: Classifier = field(repr=False)
    image: Pixels = field(repr=False)
    """The full image, upright."""
    window: tuple[float, float, float, float]
    """The part of the image that the model sees: top, left, bottom, right as fractions of its sides."""
    inputs: Float[Tensor, "1 C Y X"] = field(repr=False)
    """The preprocessed image that the model receives."""
    classes: tuple[int, ...]
    """The explained classes: the requested ones and the top one, or the top ones."""
    labels: tuple[str, ...]
    probabilities: tuple[float, ...]
    """Of the explained classes; for regression, the predicted number."""
    heatmaps: dict[str, Float[NDArray[np.float32], "K Y X"]] = field(repr=False)
    """Each method's heatmap for each class, on the token grid."""
    is_number: bool = False
    """Whether the model predicts a number; the heatmaps then show what raises it."""

    def score_text(self, value: float) -> str:
        """A probability, or a predicted number, for people."""
        return f"{value:.4g}" if self.is_number else percent(value)

    @property
    def prediction(self) -> tuple[str, float]:
        """The top class and its probability."""
        return max(zip(self.labels, self.probabilities, strict=True), key=lambda pair: pair[1])

    def attention(self) -> Iterator[Float[NDArray[np.float32], "H N N"]]:
        """The attention weights of each block in turn; for a Perceiver, each stage's from latents to inputs."""
        return iter_attention(self.model, self.inputs)

    def similarity(self) -> Iterator[Float[NDArray[np.float32], "Y*X Y*X"]]:
        """The cosine similarity of any two patch tokens: before the first block, then after each."""
        for similarity in iter_similarity(trace_tokens(self.model, self.inputs)):
            yield similarity[0].cpu().numpy()

    def figure(self) -> Any:
        """The image and the heatmaps as a matplotlib figure."""
        return plug.import_from("vitrail.inspection.still", "draw")(self)

    def overlay(self, method: str, side: int) -> Image.Image:
        """The image, its longer side about `side` pixels, under one method's heatmap for the first class."""
        return plug.import_from("vitrail.inspection.overlay", "draw_overlay")(self, method, side)

    def data(self) -> dict[str, Any]:
        """The data of the interactive page."""
        return plug.import_from("vitrail.inspection.page", "page_data")(self)

    def page(self) -> str:
        """The interactive page."""
        return plug.import_from("vitrail.inspection.page", "render")(self)

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{html.escape(self.page())}" style="border:0;height:56rem;width:100%"></iframe>'


class Evidence(NamedTuple):
    """A model's prediction for one input, and what in the input supports it."""

    classes: tuple[int, ...]
    labels: tuple[str, ...]
    probabilities: tuple[float, ...]
    """Of these classes; for regression, the predicted number."""
    heatmaps: dict[str, Float[NDArray[np.float32], "K ..."]]
    """Each method's heatmap for each class, on the token grid."""


def explain(
    model: nn.Module,
    image: ImageInput,
    *,
    classes: Sequence[str | int] | str | int | None = None,
    methods: Sequence[str] | None = None,
    top: int = TOP,
) -> Explanation | ClipExplanation:
    """Explain a model's prediction for an image: a path, encoded bytes, a PIL image or an array of pixels.

    `model` is a Vitrail, timm or transformers model. `classes`, by name or index, are explained together with the top
    class; without them, the `top` classes. `methods` are heatmap methods by name, all of them by default. A model of
    sound or video takes the path or the bytes of a clip, and its explanation is a `ClipExplanation`.
    """
    model = adopt(model)
    if model.TAKES != IMAGE:
        explain_clip = plug.import_from("vitrail.inspection.clip_explanation", "explain_clip")
        return cast("ClipExplanation", explain_clip(model, image, classes=classes, methods=methods, top=top))
    return explain_image(model, image, classes=classes, methods=methods, top=top)


def explain_image(
    model: nn.Module,
    image: ImageInput,
    *,
    classes: Sequence[str | int] | str | int | None = None,
    methods: Sequence[str] | None = None,
    top: int = TOP,
) -> Explanation:
    """Explain the prediction of a model of images; see `explain`."""
    model = adopt(model)
    selected = select_methods(model, methods)
    name, full, pixels = read_image(image, model.preprocess)
    prepared = model.preprocess.normalise(model.preprocess.resize_and_crop(pixels)[None])
    inputs = prepared.to(next(model.parameters()))
    evidence = find_evidence(model, inputs, classes=classes, methods=selected, top=top)
    return Explanation(
        name=name,
        model=model,
        image=full,
        window=model.preprocess.window(*full.shape[:2]),
        inputs=inputs,
        is_number=model.about.kind == "regression",
        **evidence._asdict(),
    )


def find_evidence(
    model: Classifier,
    inputs: Float[Tensor, "1 C *size"],
    *,
    classes: Sequence[str | int] | str | int | None,
    methods: Sequence[str],
    top: int,
) -> Evidence:
    """Predict an input, and compute the heatmaps of the requested or the top classes."""
    labels = labels_of(model)
    with trace.eval_mode(model):
        with torch.no_grad():
            outputs = model(inputs).float().cpu()
        is_number = model.about.kind == "regression"
        probabilities = outputs[0] if is_number else calibration_of(model).probabilities(outputs)[0]
        if not bool(probabilities.isfinite().all()):
            raise InspectionError("the model's outputs are not finite.", got="NaN or infinity.", hint="other weights.")
        requested = [classes] if isinstance(classes, str | int) else list(classes or ())
        top_classes = probabilities.topk(1 if requested else min(top, len(probabilities))).indices.tolist()
        numbers = list(dict.fromkeys([*(class_index(each, labels) for each in requested), *top_classes]))
        heatmaps = {
            method: plug.load(METHODS, method).compute_heatmaps(model, inputs, numbers).float().cpu().numpy()
            for method in methods
        }
    return Evidence(
        tuple(numbers),
        tuple(labels[number] for number in numbers),
        tuple(probabilities[numbers].tolist()),
        heatmaps,
    )


def iter_attention(
    model: Classifier, inputs: Float[Tensor, "1 C *size"]
) -> Iterator[Float[NDArray[np.float32], "H N M"]]:
    """The attention weights of each block in turn; for a Perceiver, each stage's from latents to inputs."""
    layers = latents.iter_reading if trace.has_latents(model) else trace.iter_attention
    for weights in layers(model, inputs):  # type: ignore[arg-type]
        yield weights[0].float().cpu().numpy()


def read_image(image: ImageInput, preprocess: Preprocess) -> tuple[str, Pixels, Pixels]:
    """A name, the pixels of the full image for display, and the pixels that the model's input is computed from."""
    background = preprocess.background
    if isinstance(image, str | Path):
        try:
            content = read_file(image)
        except OSError as error:
            raise InspectionError(
                f"{image} cannot be read.", got=f"{error.strerror}.", hint="the path of an image."
            ) from None
        full = decode_image(content, name=str(image), background=background)
        return Path(image).name, full, preprocess.decode(content, name=str(image))
    if isinstance(image, bytes):
        return "image", decode_image(image, background=background), preprocess.decode(image)
    if not isinstance(image, Image.Image | np.ndarray):
        raise InspectionError(
            "this is not an image.", got=f"a {type(image).__name__}.", hint="one path, PIL image or array at a time."
        )
    if isinstance(image, Image.Image):
        full = np.array(orient_image(to_rgb(image, background), orientation_of(image)))
    else:
        full = as_pixels(image)
    if not full.size:
        raise InspectionError("this image has no pixels.", got=f"shape {tuple(full.shape)}.", hint="another image.")
    return "image", full, as_pixels(full, preprocess.mode)


def available_methods(model: Classifier) -> list[str]:
    """The methods that work for a model, those based on attention first."""
    return [name for name in _all_methods() if plug.load(METHODS, name).applies(model)]


def _all_methods() -> list[str]:
    return sorted(plug.entries(METHODS), key=lambda name: (not plug.load(METHODS, name).NEEDS_ATTENTION, name))


def select_methods(model: Classifier, requested: Sequence[str] | None) -> list[str]:
    """The requested methods, or all, those based on attention first; fails if the model lacks what they need.

    A model without attention needs a request; a Perceiver goes without Grad-CAM, which says why if it is requested.
    """
    if not model.spec.num_classes:
        raise InspectionError("this model has no classifier to explain.", got="no classes.", hint="fine-tuned weights.")
    for name in requested or ():
        plug.load(METHODS, name)
    available = available_methods(model)
    if trace.has_latents(model):
        return [name for name in _all_methods() if name in (requested or available)]
    selected = [name for name in _all_methods() if not requested or name in requested]
    if not set(selected) <= set(available):
        trace.require_attention(model, f"--method {', '.join(available)}, which works for this model")
    return selected
