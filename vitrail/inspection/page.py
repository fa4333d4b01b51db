"""An explanation as one offline page that walks the way of the data: everything it shows is inside the file."""

from __future__ import annotations

import base64
import io
import json
import zlib
from importlib.resources import files
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image

from vitrail import plug
from vitrail.data.decode import Pixels
from vitrail.errors import InspectionError
from vitrail.inspection import embedding, trace
from vitrail.inspection.explanation import METHODS, Explanation
from vitrail.pages import fill_template
from vitrail.run.predictor import calibration_of
from vitrail.tokens import Layout

LONGEST = 960  # pixels of the picture's longer side
BUDGET = 2_300_000  # letters of attention
SHADES = (255, 63, 31, 15)
SAMPLED = 16  # every so manieth row tells how many letters all will take
POSITIONS = 340_000  # numbers of how alike positions are
SMALL = 200  # pixels of a picture that is kept as it is
FILTERS = 28
VIEW = ("make.js", "overlay.js", "looks.js", "view.js")  # in this order; with view.css, the view on any page


def render(explanation: Explanation) -> str:
    """The page of one picture."""
    folder = files("vitrail.inspection")
    data = page_data(explanation)
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return fill_template(
        "vitrail.inspection",
        "page.html",
        explanation=explanation,
        facts=_facts(explanation, data),
        methods=list(explanation.heat),
        # Inside a script element, "<" could end it.
        data=text.replace("<", "\\u003c"),
        style=folder.joinpath("view.css").read_text(encoding="utf-8"),
        script="".join(folder.joinpath(name).read_text(encoding="utf-8") for name in (*VIEW, "page.js")),
    )


def page_data(explanation: Explanation) -> dict[str, Any]:
    """Everything that the page's script draws from."""
    height, width = explanation.picture.shape[:2]
    classes = [
        {"name": label, "probability": odds}
        for label, odds in zip(explanation.labels, explanation.probabilities, strict=True)
    ]
    data: dict[str, Any] = {
        "picture": _reduced(explanation.picture),
        "size": [height, width],
        "window": list(explanation.window),
        "classes": classes,
        "maps": {
            method: {
                "title": plug.load(METHODS, method).TITLE,
                "says": plug.load(METHODS, method).SAYS,
                "levels": _packed(_levels(maps.reshape(len(maps), -1))),
            }
            for method, maps in explanation.heat.items()
        },
        "grid": list(next(iter(explanation.heat.values())).shape[1:]),
    }
    if trace.has_attention(explanation.model):
        data |= _inner_data(explanation)
    return data


@torch.no_grad()
def _inner_data(explanation: Explanation) -> dict[str, Any]:
    """Attention, token colours and positions."""
    model = explanation.model
    with trace.evaluating(model):
        found = trace.trace(model, explanation.images)
    colours = [embedding.token_colours(tokens.cells[0].float().cpu()) for tokens in (*found.inputs[1:], found.output)]
    return {
        "attention": {
            "layers": len(model.blocks),
            "heads": model.blocks[0].attn.heads,
            "rows": found.output.x.shape[1],
            "prefix": _prefix_names(model),
            **_packed_attention(model, found),
        },
        "colours": _packed((torch.stack(colours) * 255).round().byte().numpy()),
        "positions": _positions(model),
        "filters": _filters(model),
    }


def _packed_attention(model: Any, found: trace.Trace) -> dict[str, Any]:
    """Attention that fits on a page: of large models in fewer shades, of larger ones also by squares of cells.

    One block after the other, so that memory holds the matrices of one. What goes to prefix tokens is kept apart, and
    cells have their own scale: a token that draws most of the attention leaves the shades to the others.
    """
    pooled, shades = _fitting(model, found)
    levels, peaks, prefixes = [], [], []
    for block, tokens in zip(model.blocks, found.inputs, strict=True):
        weights = trace.attention_of(block, tokens)[0].float().cpu()
        cells = _pooled(weights, found.layout, pooled)
        levels.append(_levels(cells, shades))
        peaks.append(cells.max(axis=-1))
        prefixes.append(weights[..., : found.layout.prefix].numpy())
    return {
        "levels": _packed(np.stack(levels)),
        "peaks": _packed(_as_shares(np.stack(peaks))),
        "prefixes": _packed(_as_shares(np.stack(prefixes))),
        "shades": shades,
        "pooled": pooled,
    }


def _fitting(model: Any, found: trace.Trace) -> tuple[int, int]:
    """By how many cells a side, and in how many shades, attention fits on the page: told by some of its rows."""
    rows = torch.arange(0, found.output.x.shape[1], SAMPLED)
    some = torch.stack(
        [
            trace.attention_of(block, tokens, rows.to(tokens.x.device))[0].float().cpu()
            for block, tokens in zip(model.blocks, found.inputs, strict=True)
        ]
    )
    share = len(rows) / found.output.x.shape[1]
    for pooled in (2**power for power in range(max(found.layout.grid).bit_length())):
        cells = _pooled(some, found.layout, pooled)
        for shades in SHADES:
            if len(_packed(_levels(cells, shades))) / share <= BUDGET:
                return pooled, shades
    return pooled, SHADES[-1]


def _pooled(weights: torch.Tensor, layout: Layout, side: int) -> NDArray[np.float32]:
    """What goes to the cells, the mean over squares of so many cells a side."""
    cells = trace.on_grid(weights, layout)
    if side == 1:
        return cells.flatten(-2).numpy()
    small = F.avg_pool2d(cells.flatten(0, -3)[:, None], side, ceil_mode=True)
    return small.view(*weights.shape[:-1], -1).numpy()


def _as_shares(numbers: NDArray[np.float32]) -> NDArray[np.uint16]:
    return (numbers * 65535).round().astype("<u2")


def _prefix_names(model: Any) -> list[str]:
    spec = model.spec
    names = ["the class token"] * spec.class_token + ["the distillation token"] * spec.distilled
    return [*names, *(f"register {number}" for number in range(1, spec.registers + 1))]


def _positions(model: Any) -> dict[str, Any] | None:
    """How alike positions are; of large grids by squares of cells."""
    try:
        similarity = embedding.position_similarity(model).flatten(0, 1)
    except InspectionError:
        return None
    layout = Layout(model.spec.layout.grid)
    for pooled in (1, 2, 4, 8, 16):
        rows = _pooled(similarity.flatten(1), layout, pooled)
        if rows.size <= POSITIONS:
            break
    return {"levels": _packed(((rows + 1) / 2 * 255).round().astype(np.uint8)), "pooled": pooled}


def _filters(model: Any) -> str | None:
    """The patch embedding's filters side by side, as a picture."""
    try:
        tiles = embedding.filters(model, FILTERS).numpy()
    except InspectionError:
        return None
    if tiles.shape[-1] != 3:
        tiles = tiles[..., :1].repeat(3, axis=-1)
    image = np.nan_to_num(embedding.mosaic(tiles, 7), nan=1.0)
    file = io.BytesIO()
    Image.fromarray((image * 255).round().astype(np.uint8)).save(file, "PNG")
    return _address("image/png", file.getvalue())


def _levels(rows: NDArray[np.float32], shades: int = SHADES[0]) -> NDArray[np.uint8]:
    """Numbers as bytes, each row by its own largest; the root gives small ones more shades."""
    peaks = np.maximum(rows.max(axis=-1, keepdims=True), 1e-30)
    return (np.sqrt(np.clip(rows / peaks, 0, 1)) * shades).round().astype(np.uint8)


def _packed(array: NDArray[Any]) -> str:
    return base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 6)).decode()


def _reduced(picture: Pixels) -> str:
    image = Image.fromarray(picture)
    image.thumbnail((LONGEST, LONGEST))
    file = io.BytesIO()
    if max(image.size) < SMALL:
        image.save(file, "PNG")
        return _address("image/png", file.getvalue())
    image.save(file, "JPEG", quality=88)
    return _address("image/jpeg", file.getvalue())


def _address(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _facts(explanation: Explanation, data: dict[str, Any]) -> dict[str, Any]:
    """The numbers of the way of the data."""
    model, spec = explanation.model, explanation.model.spec
    layout = spec.layout
    cells = [side // num for side, num in zip(spec.image_size, layout.grid, strict=True)]
    return {
        "name": getattr(model, "name", "") or type(model).__name__,
        "attention": trace.has_attention(model),
        "positions": data.get("positions") is not None,
        "image_size": spec.image_size,
        "channels": spec.channels,
        "grid": layout.grid,
        "cell": cells,
        "numbers": cells[0] * cells[1] * spec.channels,
        "stem": getattr(getattr(spec, "stem", None), "name", "conv"),
        "prefix": _prefix_names(model) if trace.has_attention(model) else [],
        "num_tokens": layout.num_tokens,
        "width": spec.width,
        "depth": getattr(spec, "depth", 0),
        "heads": getattr(spec, "heads", 0),
        "pool": getattr(spec, "pool", "mean"),
        "num_classes": spec.num_classes,
        "multi_label": calibration_of(model).multi_label,
        "whole": all(abs(side - want) < 1e-9 for side, want in zip(explanation.window, (0, 0, 1, 1), strict=True)),
    }
