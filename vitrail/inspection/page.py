"""An explanation as one interactive offline page that follows the data through the model, all in a single file."""

from __future__ import annotations

import base64
import io
import json
import zlib
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image

from vitrail import plug
from vitrail.errors import InspectionError
from vitrail.inspection import embedding, latents, trace
from vitrail.inspection.data_url import data_url, image_url
from vitrail.inspection.explanation import METHODS, Explanation
from vitrail.inspection.similarity import iter_similarity
from vitrail.model.perceiver import Perceiver
from vitrail.model.vit import VisionTransformer
from vitrail.pages import render_template
from vitrail.run.predictor import calibration_of
from vitrail.tokens import Layout, cut

MAX_ATTENTION = 2_300_000  # characters of packed attention
SHADES = (255, 63, 31, 15)
ROW_STEP = 16  # every 16th row is packed to estimate the size of all
MAX_SIMILARITIES = 340_000  # values of position similarity
MAX_TOKEN_SIMILARITY = 400_000  # characters of packed token similarity
NUM_FILTERS = 28
Layers = Callable[..., Iterator[torch.Tensor]]
"""The attention weights [H, rows, tokens] of each layer in turn; given rows, only those."""
VIEW = ("make.js", "overlay.js", "explanation.js", "view.js")  # in this order; with view.css, the view on any page


def render(explanation: Explanation) -> str:
    """The page of one image."""
    folder = files("vitrail.inspection")
    data = page_data(explanation)
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return render_template(
        "vitrail.inspection",
        "page.html",
        explanation=explanation,
        facts=_facts(explanation, data),
        methods=list(explanation.heatmaps),
        # Inside a script element, "<" could end it.
        data=text.replace("<", "\\u003c"),
        style=folder.joinpath("view.css").read_text(encoding="utf-8"),
        script="".join(folder.joinpath(name).read_text(encoding="utf-8") for name in (*VIEW, "page.js")),
    )


def page_data(explanation: Explanation) -> dict[str, Any]:
    """The data of the page's script. The service returns it too, so its keys are part of the HTTP API."""
    height, width = explanation.image.shape[:2]
    classes = [
        {
            "name": label,
            "probability": None if explanation.is_number else probability,
            "score": explanation.score_text(probability),
        }
        for label, probability in zip(explanation.labels, explanation.probabilities, strict=True)
    ]
    data: dict[str, Any] = {
        "picture": image_url(explanation.image),
        "size": [height, width],
        "window": list(explanation.window),
        "classes": classes,
        "maps": {
            method: {
                "title": plug.load(METHODS, method).TITLE,
                "says": plug.load(METHODS, method).DESCRIPTION,
                "levels": _pack(_quantise(heatmaps.reshape(len(heatmaps), -1))),
            }
            for method, heatmaps in explanation.heatmaps.items()
        },
        "grid": list(next(iter(explanation.heatmaps.values())).shape[1:]),
    }
    if trace.has_attention(explanation.model):
        data |= _encoder_data(explanation, explanation.model)
    elif trace.has_latents(explanation.model):
        data["attention"] = _latent_data(explanation, explanation.model)
    return data


@torch.no_grad()
def _encoder_data(explanation: Explanation, model: VisionTransformer) -> dict[str, Any]:
    """Attention, token similarity and colours, position similarity and patch embedding filters."""
    with trace.eval_mode(model):
        traced = trace.trace(model, explanation.inputs)
    outputs = (*traced.inputs[1:], traced.output)

    def layers(queries: torch.Tensor | None = None) -> Iterator[torch.Tensor]:
        for block, tokens in zip(model.blocks, traced.inputs, strict=True):
            rows = None if queries is None else queries.to(tokens.x.device)
            yield trace.attention_weights(block, tokens, rows)[0].float().cpu()

    colours = [embedding.token_colours(tokens.cells[0].float().cpu()) for tokens in outputs]
    return {
        "attention": {
            "layers": len(model.blocks),
            "heads": model.spec.heads,
            "rows": traced.output.x.shape[1],
            "prefix": _prefix_names(model),
            **_pack_attention(layers, traced.layout, traced.output.x.shape[1]),
        },
        "similarity": _pack_similarity([each[0].cpu() for each in iter_similarity(traced)][1:], traced.layout),
        "colours": _pack((torch.stack(colours) * 255).round().byte().numpy()),
        "positions": _pack_positions(model),
        "filters": _encode_filters(model),
    }


def _latent_data(explanation: Explanation, model: Perceiver) -> dict[str, Any]:
    """The cross-attention of each stage: that of the mean of all latents, then that of each."""

    def layers(queries: torch.Tensor | None = None) -> Iterator[torch.Tensor]:
        for weights in latents.iter_reading(model, explanation.inputs):
            of_latents = weights[0].float().cpu()
            rows = torch.cat([of_latents.mean(dim=1, keepdim=True), of_latents], dim=1)
            yield rows if queries is None else rows[:, queries]

    num_latents = model.spec.num_latents
    return {
        "layers": model.spec.num_stages,
        "heads": model.spec.cross_heads,
        "rows": 1 + num_latents,
        "latents": num_latents,
        "inputs": _input_noun(model.spec),
        "prefix": [],
        **_pack_attention(layers, Layout(cut(tuple(explanation.inputs.shape[2:]), model.spec.cell)), 1 + num_latents),
    }


def _input_noun(spec: Any) -> str:
    """What the latents of a Perceiver read."""
    return "pixels" if spec.cell == (1, 1) else "patches"


def _pack_attention(layers: Layers, layout: Layout, num_rows: int) -> dict[str, Any]:
    """Attention small enough for a page: large models get fewer shades, larger ones also pooled cells.

    One block at a time, so that memory holds the matrices of one. Attention to prefix tokens is stored separately and
    cells have their own scale, so that a token with most of the attention leaves shades for the others.
    """
    pooled, shades = _choose_packing(layers, layout, num_rows)
    levels, peaks, prefixes = [], [], []
    for weights in layers():
        cells = _pool(weights, layout, pooled)
        levels.append(_quantise(cells, shades))
        peaks.append(cells.max(axis=-1))
        prefixes.append(weights[..., : layout.prefix].numpy())
    return {
        "levels": _pack(np.stack(levels)),
        "peaks": _pack(_to_uint16(np.stack(peaks))),
        "prefixes": _pack(_to_uint16(np.stack(prefixes))),
        "shades": shades,
        "pooled": pooled,
    }


def _choose_packing(layers: Layers, layout: Layout, num_rows: int) -> tuple[int, int]:
    """The pooling size and number of shades with which attention fits on the page, estimated from some of its rows."""
    rows = torch.arange(0, num_rows, ROW_STEP)
    sample = torch.stack(list(layers(rows)))
    fraction = len(rows) / num_rows
    for pooled in (2**power for power in range(max(layout.grid).bit_length())):
        cells = _pool(sample, layout, pooled)
        for shades in SHADES:
            if len(_pack(_quantise(cells, shades))) / fraction <= MAX_ATTENTION:
                return pooled, shades
    return pooled, SHADES[-1]


def _pool(weights: torch.Tensor, layout: Layout, side: int) -> NDArray[np.float32]:
    """The weights of the cells, averaged over squares of `side` x `side` cells."""
    cells = trace.on_grid(weights, layout)
    if side == 1:
        return cells.flatten(-2).numpy()
    small = F.avg_pool2d(cells.flatten(0, -3)[:, None], side, ceil_mode=True)
    return small.view(*weights.shape[:-1], -1).numpy()


def _pack_similarity(layers: list[torch.Tensor], layout: Layout) -> dict[str, Any]:
    """The similarity of any two patch tokens after each block, each pair once: rows of the upper triangle.

    Large models get fewer shades, larger ones also pooled cells, as for attention.
    """
    cells = Layout(layout.grid)
    for pooled in (2**power for power in range(max(cells.grid).bit_length())):
        matrices = [_pool(torch.from_numpy(_pool(each, cells, pooled).T.copy()), cells, pooled) for each in layers]
        triangles = np.stack([each[np.triu_indices(len(each))] for each in matrices])
        for shades in SHADES:
            levels = _pack(((triangles.clip(-1, 1) + 1) / 2 * shades).round().astype(np.uint8))
            if len(levels) <= MAX_TOKEN_SIMILARITY:
                return {"levels": levels, "shades": shades, "pooled": pooled}
    return {"levels": levels, "shades": shades, "pooled": pooled}


def _to_uint16(fractions: NDArray[np.float32]) -> NDArray[np.uint16]:
    return (fractions * 65535).round().astype("<u2")


def _prefix_names(model: VisionTransformer) -> list[str]:
    spec = model.spec
    names = ["the class token"] * spec.class_token + ["the distillation token"] * spec.distilled
    return [*names, *(f"register {number}" for number in range(1, spec.registers + 1))]


def _pack_positions(model: VisionTransformer) -> dict[str, Any] | None:
    """The similarity of position embeddings, pooled for large grids."""
    try:
        similarity = embedding.position_similarity(model).flatten(0, 1)
    except InspectionError:
        return None
    layout = Layout(model.spec.layout.grid)
    for pooled in (1, 2, 4, 8, 16):
        rows = _pool(similarity.flatten(1), layout, pooled)
        if rows.size <= MAX_SIMILARITIES:
            break
    return {"levels": _pack(((rows + 1) / 2 * 255).round().astype(np.uint8)), "pooled": pooled}


def _encode_filters(model: VisionTransformer) -> str | None:
    """The patch embedding's filters, tiled into one image."""
    try:
        tiles = embedding.filters(model, NUM_FILTERS).numpy()
    except InspectionError:
        return None
    if tiles.shape[-1] != 3:
        tiles = tiles[..., :1].repeat(3, axis=-1)
    image = np.nan_to_num(embedding.mosaic(tiles, 7), nan=1.0)
    file = io.BytesIO()
    Image.fromarray((image * 255).round().astype(np.uint8)).save(file, "PNG")
    return data_url("image/png", file.getvalue())


def _quantise(rows: NDArray[np.float32], shades: int = SHADES[0]) -> NDArray[np.uint8]:
    """Values as bytes, each row scaled by its maximum; the square root gives small values more shades."""
    peaks = np.maximum(rows.max(axis=-1, keepdims=True), 1e-30)
    return (np.sqrt(np.clip(rows / peaks, 0, 1)) * shades).round().astype(np.uint8)


def _pack(array: NDArray[Any]) -> str:
    return base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 6)).decode()


def _facts(explanation: Explanation, data: dict[str, Any]) -> dict[str, Any]:
    """The numbers in the page's texts."""
    model, spec = explanation.model, explanation.model.spec
    layout = spec.layout
    cell = [side // num for side, num in zip(spec.image_size, layout.grid, strict=True)]
    return {
        "name": model.name or type(model).__name__,
        "attention": trace.has_attention(model),
        "sees": model.spec.attention.sees if trace.has_attention(model) else "",
        "latents": model.spec.num_latents if trace.has_latents(model) else 0,
        "stages": getattr(spec, "num_stages", 0),
        "cross_heads": getattr(spec, "cross_heads", 0),
        "input_width": getattr(spec, "input_width", 0),
        "inputs": _input_noun(spec),
        "positions": data.get("positions") is not None,
        "image_size": spec.image_size,
        "channels": spec.channels,
        "grid": layout.grid,
        "patch": cell,
        "patch_values": cell[0] * cell[1] * spec.channels,
        "stem": getattr(getattr(spec, "stem", None), "name", "conv"),
        "prefix": _prefix_names(model) if trace.has_attention(model) else [],
        "num_tokens": layout.num_tokens,
        "width": spec.width,
        "depth": getattr(spec, "depth", 0),
        "heads": getattr(spec, "heads", 0),
        "pool": getattr(spec, "pool", "mean"),
        "distilled": getattr(spec, "distilled", False),
        "num_classes": spec.num_classes,
        "multi_label": calibration_of(model).multi_label,
        "uncropped": all(abs(side - want) < 1e-9 for side, want in zip(explanation.window, (0, 0, 1, 1), strict=True)),
    }
