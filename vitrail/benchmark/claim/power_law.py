"""The error falls as a power of compute, and saturates before it reaches zero."""

from __future__ import annotations

import math

from vitrail.benchmark.experiment import Experiment
from vitrail.benchmark.networks import Size, vit
from vitrail.benchmark.verdict import Chart, Contrast, Curve, Measured
from vitrail.metric.law import Law, UndecidedLawError, fit_law

DECK = "003"
CLAIM = "The error of a family of models is a saturating power law of compute, so that larger runs can be predicted."
PAPER = "E = 0.12 + 0.63 (C + 0.52)^-0.32 for a family of ViTs (arXiv 2106.04560, figure 2)."
EXPERIMENT = (
    "Two sizes of ViT on 50,000 images of CIFAR-10 at 16 x 16 pixels with 1/32 to 1/2 teraflop, the better size of "
    "each; a law fitted to these predicts the error with one teraflop. That the deck's constants are recovered from "
    "noisy points is shown in docs/scaling.md."
)
SIZES: tuple[Size, ...] = ("small", "medium")
BUDGETS = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)  # the last one is predicted


def experiments(seed: int) -> dict[str, Experiment]:
    """Both sizes with every budget."""
    return {
        f"{size} {budget:g}": vit(size, num_images=50_000, teraflops=budget, seed=seed)
        for size in SIZES
        for budget in BUDGETS
    }


def _errors(measured: Measured, budget: float) -> list[float]:
    """The errors of the better size, chosen by the mean over seeds."""
    by_size = [[1 - seed[f"{size} {budget:g}"]["accuracy"] for seed in measured] for size in SIZES]
    return min(by_size, key=sum)


def _fit(measured: Measured) -> Law | None:
    try:
        return fit_law(BUDGETS[:-1], [_errors(measured, budget) for budget in BUDGETS[:-1]])
    except UndecidedLawError:
        return None


def contrasts(measured: Measured) -> list[Contrast]:
    """Whether the error falls, whether it falls ever more slowly, and whether the law predicts the largest run."""
    errors = [_errors(measured, budget) for budget in BUDGETS]
    logs = [[math.log(value) for value in each] for each in errors]
    num_doublings = len(BUDGETS) - 1
    found = [
        Contrast(
            "every doubling of compute lowers the error, on average",
            tuple((first - last) / num_doublings for first, last in zip(logs[0], logs[-1], strict=True)),
            "of the error's logarithm",
        ),
        Contrast(
            "later doublings lower it by less",
            tuple(a - b - (c - d) for a, b, c, d in zip(logs[0], logs[2], logs[-3], logs[-1], strict=True)),
            "of the error's logarithm",
        ),
    ]
    law = _fit(measured)
    if law is not None:
        low, high = law.forecast(BUDGETS[-1], num_runs=1).interval
        margins = tuple(min(high - value, value - low) for value in errors[-1])
        found.append(Contrast("the law's interval contains the largest run", margins))
    return found


def chart(measured: Measured) -> Chart:
    """Measured errors, and the law."""
    curves = [
        Curve("measured", tuple((budget, tuple(100 * v for v in _errors(measured, budget))) for budget in BUDGETS))
    ]
    law = _fit(measured)
    if law is not None:
        fitted = tuple((budget, (100 * law.forecast(budget).value,)) for budget in BUDGETS)
        curves.append(Curve("law, fitted without the last point", fitted))
    return Chart(tuple(curves), "training compute (teraflops)", y_label="test error (%)", log_x=True)
