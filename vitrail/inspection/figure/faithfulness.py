"""How faithful each heatmap method is to this model: insertion and deletion (arXiv 1806.07421)."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure

from vitrail import plug
from vitrail.contract import Classifier
from vitrail.errors import InspectionError
from vitrail.inspection.drawing import Drawing, require_sample
from vitrail.inspection.explanation import METHODS
from vitrail.inspection.faithfulness import NUM_STEPS, Curves, evaluate_heatmaps
from vitrail.inspection.sample import Sample

TITLE = "Faithfulness of the heatmaps"
DESCRIPTION = (
    "Patches are revealed to the model (insertion) or hidden from it (deletion), the most important ones first. "
    "The faster the probability of the class rises or falls, the more faithful the heatmap that ranks them; chance and "
    "edges are baselines that ignore the model. Few images give noisy results: the legend says how many were used."
)
NUM_IMAGES = 24


def draw(model: Classifier, sample: Sample | None) -> Drawing:
    """The mean curves of every heatmap method, with the areas under them."""
    sample = require_sample(sample, "faithfulness")
    curves = collect_curves(model, sample, NUM_IMAGES)
    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    fractions = [step / NUM_STEPS for step in range(NUM_STEPS + 1)]
    rows: list[tuple[object, ...]] = []
    for axis, kind in zip(figure.subplots(1, 2, sharey=True), ("insertion", "deletion"), strict=True):
        for name, of_method in curves.items():
            area = sum(getattr(each, f"{kind}_area") for each in of_method) / len(of_method)
            mean = torch.stack([getattr(each, kind) for each in of_method]).mean(dim=0)
            style = "--" if name in ("edges", "chance") else "-"
            axis.plot(fractions, mean, style, label=f"{name}: {area:.3f}")
            rows.append((kind, name, f"{area:.4f}", len(of_method)))
        axis.set(xlabel=f"fraction of patches {'revealed' if kind == 'insertion' else 'hidden'}", ylim=(0, None))
        axis.legend(fontsize=8, title=f"{kind}: mean area, {len(of_method)} images")
        axis.grid(alpha=0.3)
    figure.axes[0].set_ylabel("mean probability of the class")
    return Drawing(figure, ("curve", "map", "area", "images"), rows)


def collect_curves(model: Classifier, sample: Sample, num: int) -> dict[str, list[Curves]]:
    """The curves of every heatmap method for the top class of each image."""
    if not model.spec.num_classes:
        raise InspectionError("this model has no classifier.", got="no classes.", hint="fine-tuned weights.")
    available = [name for name in plug.entries(METHODS) if plug.load(METHODS, name).applies(model)]
    collected: dict[str, list[Curves]] = {}
    seed = 0
    for batch in sample.batches(num):
        for image in torch.split(batch, 1):
            with torch.no_grad():
                number = int(model(image).argmax())
            heatmaps = {
                name: plug.load(METHODS, name).compute_heatmaps(model, image, [number])[0] for name in available
            }
            for name, curves in evaluate_heatmaps(model, image, number, heatmaps, seed=seed).items():
                collected.setdefault(name, []).append(curves)
            seed += 1
    return collected
