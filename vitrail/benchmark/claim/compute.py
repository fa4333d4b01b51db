"""For the same compute, a Vision Transformer is more accurate than a ResNet, given sufficient data."""

from __future__ import annotations

from vitrail.benchmark.experiment import Experiment
from vitrail.benchmark.networks import SIZES, hybrid, resnet, vit
from vitrail.benchmark.verdict import Chart, Contrast, Curve, Measured

DECK = "003"
CLAIM = "Given sufficient data, a Vision Transformer gives more accuracy per FLOP than a ResNet."
PAPER = "ViT needs two to four times less compute than ResNets for the same transfer accuracy (figure 5, JFT-300M)."
EXPERIMENT = (
    "ViT, hybrid and ResNet, each in three sizes, with an eighth of a teraflop and with half of one; "
    "the best of the three sizes counts. 10,000 images of CIFAR-10 at 16 x 16 pixels, "
    "not the sufficient data that the claim asks for."
)
FAMILIES = {"vit": vit, "hybrid": hybrid, "resnet": resnet}
BUDGETS = (0.125, 0.5)


def experiments(seed: int) -> dict[str, Experiment]:
    """All families, sizes and budgets."""
    return {
        f"{kind} {size} {budget:g}": make(size, teraflops=budget, seed=seed)
        for kind, make in FAMILIES.items()
        for size in SIZES
        for budget in BUDGETS
    }


def _best(measured: Measured, kind: str, budget: float) -> list[float]:
    """The front: the best size at each budget, chosen by the mean of all seeds."""
    keys = [f"{kind} {size} {budget:g}" for size in SIZES]
    best = max(keys, key=lambda key: sum(seed[key]["accuracy"] for seed in measured))
    return [seed[best]["accuracy"] for seed in measured]


def contrasts(measured: Measured) -> list[Contrast]:
    """Whether the ViT's front is above the ResNet's at both budgets."""
    return [
        Contrast(
            f"with {budget:g} teraflops the best ViT is above the best ResNet",
            tuple(
                one - other
                for one, other in zip(_best(measured, "vit", budget), _best(measured, "resnet", budget), strict=True)
            ),
        )
        for budget in BUDGETS
    ]


def chart(measured: Measured) -> Chart:
    """The fronts."""
    names = {"vit": "ViT", "hybrid": "hybrid", "resnet": "ResNet"}
    curves = tuple(
        Curve(
            name,
            tuple((budget, tuple(100 * value for value in _best(measured, kind, budget))) for budget in BUDGETS),
        )
        for kind, name in names.items()
    )
    return Chart(curves, "training compute (teraflops)", y_label="test accuracy of the best size (%)", log_x=True)
