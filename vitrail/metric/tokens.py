"""Scores over tokens that come in samples of different length, with the noise that the samples have."""

from __future__ import annotations

import math
from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor

from vitrail.metric.interval import Z_TWO_SIDED_95, Interval, wilson_interval
from vitrail.metric.score import Metric, Score


def mean_per_token(total: Float[Tensor, " n"], units: Float[Tensor, " n"]) -> tuple[float, float]:
    """The sum of all samples divided by their tokens, and its standard error (that of a ratio of two means)."""
    total, units = total.double(), units.double()
    num_tokens = units.sum().item()
    if not num_tokens or not bool(total.isfinite().all()):
        return math.nan, 0.0
    mean = total.sum().item() / num_tokens
    num = len(total)
    if num < 2:
        return mean, math.inf
    residuals = total - mean * units
    return mean, math.sqrt(residuals.square().sum().item() * num / (num - 1)) / num_tokens


def score_tokens(metric: Metric, answers: Mapping[str, Tensor]) -> Score:
    """Score answers by the fraction of `correct` tokens or, for a metric in nats, by the mean loss per token."""
    num = len(answers["loss"])
    loss, error = mean_per_token(answers["loss"], answers["units"])
    if not math.isfinite(loss):
        return Score(metric, 0.0 if metric.higher else math.inf, 0.0, math.nan, num)
    if not metric.higher:
        return Score(metric, loss, error, loss, num)
    return Score(metric, *mean_per_token(answers["correct"], answers["units"]), loss, num)


def losses_per_token(answers: Mapping[str, Tensor]) -> Float[Tensor, " n"]:
    """The mean loss of each sample."""
    return answers["loss"].double() / answers["units"].double().clamp(min=1.0)


def normal_interval(mean: float, error: float) -> Interval | None:
    """The 95 % interval of a mean with this standard error; None without one."""
    if not math.isfinite(mean) or not math.isfinite(error):
        return None
    return mean - Z_TWO_SIDED_95 * error, mean + Z_TWO_SIDED_95 * error


def fraction_interval(value: float, error: float, num: int) -> Interval:
    """The 95 % interval of a fraction of `num` tokens: Wilson's, with as many tokens as the standard error is worth."""
    effective = value * (1 - value) / error**2 if 0 < value < 1 and 0 < error < math.inf else float(num)
    return wilson_interval(value * effective, effective)


def bits(nats: float) -> float:
    """Nats as bits."""
    return nats / math.log(2)
