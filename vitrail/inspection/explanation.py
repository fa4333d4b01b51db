"""Why does the model say so? One picture, its likeliest classes, and maps of what speaks for each."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitrail import plug
from vitrail.data.decode import Pixels, as_pixels, decode_image, orientation_of, read_file, to_rgb, upright
from vitrail.data.transform import Preprocess
from vitrail.errors import InspectionError, UnknownNameError, unknown_name
from vitrail.inspection import trace
from vitrail.inspection.adopt import adopt
from vitrail.run.predictor import calibration_of, labels_of

METHODS = "vitrail.inspection.method"
TOP = 5
Item = str | Path | bytes | Image.Image | Pixels


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """A picture as a model sees it."""

    name: str
    model: Any = field(repr=False)
    picture: Pixels = field(repr=False)
    """The whole picture, upright."""
    window: tuple[float, float, float, float]
    """The part of it that the model sees: top, left, bottom, right as shares of its sides."""
    images: Float[Tensor, "1 C Y X"] = field(repr=False)
    """The model's input."""
    classes: tuple[int, ...]
    """The explained classes: those that were asked for and the likeliest one, or the likeliest ones."""
    labels: tuple[str, ...]
    probabilities: tuple[float, ...]
    heat: dict[str, Float[NDArray[np.float32], "K Y X"]] = field(repr=False)
    """The map of each method for each class, on the grid of tokens."""

    @property
    def answer(self) -> tuple[str, float]:
        """What the model says: the likeliest class and its probability."""
        return max(zip(self.labels, self.probabilities, strict=True), key=lambda told: told[1])

    def attention(self) -> Iterator[Float[NDArray[np.float32], "H N N"]]:
        """How much each token looks at each other, block after block."""
        for weights in trace.attention(self.model, self.images):
            yield weights[0].float().cpu().numpy()

    def figure(self) -> Any:
        """The picture and the maps over it, as a figure of matplotlib."""
        return plug.member("vitrail.inspection.still", "draw")(self)

    def laid_over(self, method: str, side: int) -> Image.Image:
        """The picture, no longer than so many pixels, with one method's map for the first class over it."""
        return plug.member("vitrail.inspection.overlay", "lay_over")(self, method, side)

    def data(self) -> dict[str, Any]:
        """All that the interactive page draws from."""
        return plug.member("vitrail.inspection.page", "page_data")(self)

    def page(self) -> str:
        """The interactive page."""
        return plug.member("vitrail.inspection.page", "render")(self)

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{html.escape(self.page())}" style="border:0;height:56rem;width:100%"></iframe>'


def explain(
    model: Any,
    image: Item,
    *,
    classes: Sequence[str | int] | str | int | None = None,
    methods: Sequence[str] | None = None,
    top: int = TOP,
) -> Explanation:
    """Explain what a model says to a picture: a file, its bytes, a PIL image or an array of pixels.

    `model` is Vitrail's, timm's or transformers'. `classes`, by name or number, are explained, and the likeliest one;
    without them the `top` likeliest. `methods` are names of maps, by default all that the model has what they need for.
    """
    model = adopt(model)
    if not model.spec.num_classes:
        raise InspectionError("this model has no classifier to explain.", got="no classes.", hint="fine-tuned weights.")
    chosen = _methods(model, methods)
    name, picture, pixels = read_image(image, model.preprocess)
    prepared = model.preprocess.normalise(model.preprocess.pixels(pixels)[None])
    images = prepared.to(next(model.parameters()))
    labels = labels_of(model)
    with trace.evaluating(model):
        with torch.no_grad():
            odds = calibration_of(model).probabilities(model(images).float().cpu())[0]
        if not bool(odds.isfinite().all()):
            raise InspectionError("the model's outputs are not finite.", got="NaN or infinity.", hint="other weights.")
        asked = [classes] if isinstance(classes, str | int) else list(classes or ())
        likeliest = odds.topk(1 if asked else min(top, len(odds))).indices.tolist()
        numbers = list(dict.fromkeys([*(class_number(each, labels) for each in asked), *likeliest]))
        heat = {
            method: plug.load(METHODS, method).heat(model, images, numbers).float().cpu().numpy() for method in chosen
        }
    return Explanation(
        name=name,
        model=model,
        picture=picture,
        window=model.preprocess.window(*picture.shape[:2]),
        images=images,
        classes=tuple(numbers),
        labels=tuple(labels[number] for number in numbers),
        probabilities=tuple(odds[numbers].tolist()),
        heat=heat,
    )


def read_image(image: Item, preprocess: Preprocess) -> tuple[str, Pixels, Pixels]:
    """A name, the pixels of the whole picture for the eye, and those that the model's input is made of."""
    background = preprocess.background
    if isinstance(image, str | Path):
        try:
            content = read_file(image)
        except OSError as error:
            raise InspectionError(
                f"{image} cannot be read.", got=f"{error.strerror}.", hint="the path of a picture."
            ) from None
        shown = decode_image(content, name=str(image), background=background)
        return Path(image).name, shown, preprocess.decode(content, name=str(image))
    if isinstance(image, bytes):
        return "picture", decode_image(image, background=background), preprocess.decode(image)
    if not isinstance(image, Image.Image | np.ndarray):
        raise InspectionError(
            "this is no picture.", got=f"a {type(image).__name__}.", hint="one path, PIL image or array at a time."
        )
    if isinstance(image, Image.Image):
        shown = np.array(upright(to_rgb(image, background), orientation_of(image)))
    else:
        shown = as_pixels(image)
    if not shown.size:
        raise InspectionError(
            "this picture has no pixels.", got=f"shape {tuple(shown.shape)}.", hint="another picture."
        )
    return "picture", shown, as_pixels(shown, preprocess.mode)


def class_number(told: str | int, labels: Sequence[str]) -> int:
    """The number of a class that is told by name or by number."""
    folded = [label.casefold() for label in labels]
    wanted = str(told).casefold()
    if not isinstance(told, int) and wanted in folded:  # folders may be named by numbers
        return folded.index(wanted)
    if str(told).isdecimal():
        if int(told) < len(labels):
            return int(told)
        raise UnknownNameError(
            "no class has this number.", got=f"{told}.", hint=f"numbers from 0 to {len(labels) - 1}."
        )
    with_word = [label for label, low in zip(labels, folded, strict=True) if wanted and wanted in low]
    if with_word:
        raise UnknownNameError("no class has this name.", got=f"{told!r}.", hint=f"{', '.join(with_word[:5])}.")
    raise unknown_name("class", str(told), labels)


def able_methods(model: Any) -> list[str]:
    """The methods that a model has what they need for, those of attention first."""
    able = trace.has_attention(model)
    return [name for name in _known_methods() if able or not plug.load(METHODS, name).NEEDS_ATTENTION]


def _known_methods() -> list[str]:
    return sorted(plug.entries(METHODS), key=lambda name: (not plug.load(METHODS, name).NEEDS_ATTENTION, name))


def _methods(model: Any, asked: Sequence[str] | None) -> list[str]:
    """The methods that were asked for, those of attention first; of a model without it, some cannot be had."""
    for name in asked or ():
        plug.load(METHODS, name)
    able = able_methods(model)
    chosen = [name for name in _known_methods() if not asked or name in asked]
    if not set(chosen) <= set(able):
        trace.require_attention(model, f"--method {', '.join(able)}, which works for it")
    return chosen
