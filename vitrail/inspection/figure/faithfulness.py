"""Which maps deserve trust on this model: insertion and deletion (arXiv 1806.07421)."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure

from vitrail import plug
from vitrail.errors import InspectionError
from vitrail.inspection.drawing import Drawing, require_sample
from vitrail.inspection.explanation import METHODS
from vitrail.inspection.faithfulness import NUM_STEPS, Curves, judged
from vitrail.inspection.sample import Sample
from vitrail.inspection.trace import has_attention

TITLE = "Faithfulness of the maps"
SAYS = (
    "Patches are shown to the model (insertion), or taken from it (deletion), in the order that a map calls important. "
    "The faster the class's probability rises, or falls, the more the map is to be trusted; chance and edges know "
    "nothing of the model. A few pictures tell little: the number stands above the areas."
)
NUM_IMAGES = 24


def draw(model: Any, sample: Sample | None) -> Drawing:
    """The mean curves of every map, with the areas below them."""
    sample = require_sample(sample, "faithfulness")
    found = collect(model, sample, NUM_IMAGES)
    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    shares = [step / NUM_STEPS for step in range(NUM_STEPS + 1)]
    rows: list[tuple[object, ...]] = []
    for axis, kind in zip(figure.subplots(1, 2, sharey=True), ("insertion", "deletion"), strict=True):
        for name, curves in found.items():
            area = sum(getattr(each, f"{kind}_area") for each in curves) / len(curves)
            mean = torch.stack([getattr(each, kind) for each in curves]).mean(dim=0)
            style = "--" if name in ("edges", "chance") else "-"
            axis.plot(shares, mean, style, label=f"{name}: {area:.3f}")
            rows.append((kind, name, f"{area:.4f}", len(curves)))
        axis.set(xlabel=f"share of patches, {kind}", ylim=(0, None))
        axis.legend(fontsize=8, title=f"area, {len(curves)} pictures")
        axis.grid(alpha=0.3)
    figure.axes[0].set_ylabel("mean probability of the class")
    return Drawing(figure, ("curve", "map", "area", "pictures"), rows)


def collect(model: Any, sample: Sample, num: int) -> dict[str, list[Curves]]:
    """The curves of every map for the likeliest class of each picture."""
    if not model.spec.num_classes:
        raise InspectionError("this model has no classifier.", got="no classes.", hint="fine-tuned weights.")
    able = [
        name for name in plug.entries(METHODS) if has_attention(model) or not plug.load(METHODS, name).NEEDS_ATTENTION
    ]
    found: dict[str, list[Curves]] = {}
    seen = 0
    for images in sample.batches(num):
        for image in images:
            picture = image[None]
            with torch.no_grad():
                number = int(model(picture).argmax())
            maps = {name: plug.load(METHODS, name).heat(model, picture, [number])[0] for name in able}
            for name, curves in judged(model, picture, number, maps, seed=seen).items():
                found.setdefault(name, []).append(curves)
            seen += 1
    return found
