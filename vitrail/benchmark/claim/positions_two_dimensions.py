"""Position embeddings learn that images have rows and columns."""

from __future__ import annotations

from vitrail.benchmark.experiment import Experiment
from vitrail.benchmark.networks import vit
from vitrail.benchmark.verdict import Chart, Contrast, Curve, Measured

DECK = "003"
CLAIM = "Learned position embeddings find the two dimensions of the image by themselves."
PAPER = "Closer patches get more similar position embeddings, and a row-column structure appears (figure 7, centre)."
EXPERIMENT = (
    "A ViT with 64 tokens; after 0.25, 0.5 and 1 teraflop, how much of its position table is a term for the row plus a "
    "term for the column (adjusted R2). Control: the patches of all images in another order, the same for all images. "
    "No augmentation, because shifting a shuffled image would mix its patches."
)
BUDGETS = (0.25, 0.5, 1.0)
AS_THEY_ARE = ("augment.crop=random", "augment.flip_rate=0")  # of images that have the size of the model: no crop


def experiments(seed: int) -> dict[str, Experiment]:
    """Three lengths of training, in order and shuffled."""
    return {
        f"{name} {budget:g}": vit(
            "small",
            patch=2,
            teraflops=budget,
            settings=AS_THEY_ARE,
            seed=seed,
            shuffled=name == "shuffled",
            inspect=("positions",),
        )
        for name in ("ordered", "shuffled")
        for budget in BUDGETS
    }


def contrasts(measured: Measured) -> list[Contrast]:
    """Whether there is structure, whether it comes from the images, and whether it grows."""
    most = BUDGETS[-1]
    r2 = {name: [seed[f"{name} {most:g}"]["position_r2"] for seed in measured] for name in ("ordered", "shuffled")}
    return [
        Contrast("rows and columns explain part of the table", tuple(r2["ordered"]), "R2"),
        Contrast(
            "more than where patches are shuffled",
            tuple(one - other for one, other in zip(r2["ordered"], r2["shuffled"], strict=True)),
            "R2",
        ),
        Contrast(
            "of shuffled patches, the table learns the places that they came from",
            tuple(
                seed[f"shuffled {most:g}"]["position_r2_unshuffled"] - seed[f"shuffled {most:g}"]["position_r2"]
                for seed in measured
            ),
            "R2",
        ),
    ]


def chart(measured: Measured) -> Chart:
    """R2 by length of training."""
    lines = (
        ("in order", "ordered", "position_r2"),
        ("shuffled, as the model sees them", "shuffled", "position_r2"),
        ("shuffled, where they came from", "shuffled", "position_r2_unshuffled"),
    )
    curves = tuple(
        Curve(
            title,
            tuple((budget, tuple(seed[f"{name} {budget:g}"][field] for seed in measured)) for budget in BUDGETS),
        )
        for title, name, field in lines
    )
    return Chart(curves, "training compute (teraflops)", y_label="R2 of row and column (adjusted)", log_x=True)
