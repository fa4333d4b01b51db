"""A pretrained model gets better with images of higher resolution, if its positions are interpolated."""

from __future__ import annotations

from vitrail.benchmark.experiment import Experiment
from vitrail.benchmark.pretrained import ResolutionProbe
from vitrail.benchmark.verdict import Chart, Contrast, Measured, contrast, percent_curve

DECK = "004"
CLAIM = "Fine-tuning at a higher resolution than that of pretraining helps; position embeddings are interpolated."
PAPER = "ViT is fine-tuned at 384 or 512 pixels after pretraining at 224, with interpolated position embeddings."
EXPERIMENT = (
    "A linear probe of DeiT-Ti (pretrained at 224 pixels) on 185 images of Oxford Pets, tested on 185 others, "
    "other images for each seed, at 160 to 384 pixels. Control: positions in reading order instead of "
    "interpolated ones. The images have a short side of 224 pixels, so larger inputs add tokens but no detail."
)
SIDES = (160, 224, 288, 384)


def experiments(seed: int) -> dict[str, Experiment]:
    """All resolutions, with interpolation and without; at 224 pixels there is nothing to interpolate."""
    return {
        f"{name} {side}": ResolutionProbe(side, name == "interpolated" or side == 224, seed)
        for name in ("interpolated", "ordered")
        for side in SIDES
    }


def contrasts(measured: Measured) -> list[Contrast]:
    """Whether resolution helps, and whether interpolation matters."""
    return [
        contrast("288 pixels are better than 224", measured, "interpolated 288", "interpolated 224"),
        contrast("224 pixels are better than 160", measured, "interpolated 224", "interpolated 160"),
        contrast("at 288 pixels, interpolated positions are better", measured, "interpolated 288", "ordered 288"),
    ]


def chart(measured: Measured) -> Chart:
    """Accuracy by resolution."""
    curves = (
        percent_curve(title, measured, [(side, f"{name} {side}") for side in SIDES])
        for title, name in (("interpolated positions", "interpolated"), ("positions in reading order", "ordered"))
    )
    return Chart(tuple(curves), "side of the input (pixels)")
