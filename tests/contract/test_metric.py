"""Metrics agree with scikit-learn, and their intervals have the coverage they claim."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import metrics

from vitrail.calibration import Calibration, free_energy
from vitrail.metric.calibration import brier_score, calibration_error, calibration_noise, reliability
from vitrail.metric.interval import bootstrap_interval, mean_proportion_interval, wilson_interval
from vitrail.metric.paired import compare_hits
from vitrail.metric.per_class import balanced_accuracy, class_scores, confused_pairs, confusion_matrix
from vitrail.metric.ranking import mean_average_precision, weighted_map
from vitrail.metric.summary import summarise
from vitrail.run.calibrate import calibrate, read_calibration, write_calibration

TRIALS = 500


@pytest.fixture
def scored() -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of six classes, and a truth in which the last class does not occur."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 5, 300)
    logits = rng.normal(size=(300, 6)) + 2 * np.eye(6)[truth]
    probabilities = np.exp(logits)
    return probabilities / probabilities.sum(axis=1, keepdims=True), truth


def test_scores_agree_with_scikit_learn(scored: tuple[np.ndarray, np.ndarray]) -> None:
    probabilities, truth = scored
    predicted = probabilities.argmax(axis=1)
    names = tuple("abcdef")
    found = summarise(probabilities, truth, names, uncalibrated=probabilities)
    assert found.top1 == pytest.approx(metrics.accuracy_score(truth, predicted))
    assert found.top5 == pytest.approx(metrics.top_k_accuracy_score(truth, probabilities, k=5, labels=range(6)))
    table = confusion_matrix(truth, predicted, 6)
    assert (table == metrics.confusion_matrix(truth, predicted, labels=range(6))).all()
    with pytest.warns(UserWarning, match="y_pred contains classes not in y_true"):
        assert found.balanced == pytest.approx(metrics.balanced_accuracy_score(truth, predicted))
    theirs = metrics.precision_recall_fscore_support(truth, predicted, labels=range(6), zero_division=0)
    for number, each in enumerate(found.classes):
        ours = (each.precision or 0.0, each.recall or 0.0, each.f1 or 0.0, each.n)
        assert ours == pytest.approx([column[number] for column in theirs])
    assert found.classes[5].recall is None
    assert found.brier == pytest.approx(((probabilities - np.eye(6)[truth]) ** 2).sum(axis=1).mean())
    pairs = confused_pairs(table, names)
    assert sum(count for *_, count in pairs) == (predicted != truth).sum()
    assert [count for *_, count in pairs] == sorted((count for *_, count in pairs), reverse=True)


def test_perfect_and_hopeless_scores() -> None:
    truth = np.array([0, 1, 1])
    sure = np.eye(2)[truth]
    assert brier_score(sure, truth) == 0.0
    assert brier_score(1 - sure, truth) == 2.0
    assert calibration_error(np.ones(3), np.array([True, True, True])) == 0.0
    assert calibration_error(np.ones(3), np.array([False, False, False])) == 1.0
    value, (low, high) = balanced_accuracy(confusion_matrix(truth, truth, 2))
    assert (value, high) == (1.0, 1.0)
    assert 0.0 < low < wilson_interval(3, 3)[0], "two small classes say less than one class with as many images"
    assert class_scores(np.zeros((1, 1)), ("a",))[0].f1 is None
    assert [each.n for each in reliability(np.array([0.01, 0.99, 1.0]), np.array([True, False, True]))] == [1, 2]


def test_calibration_error_by_hand() -> None:
    confidence = np.array([0.9, 0.9, 0.9, 0.9, 0.3, 0.3])
    correct = np.array([True, True, True, False, False, True])
    # the bin of 0.9: accuracy 0.75; the bin of 0.3: accuracy 0.5
    assert calibration_error(confidence, correct) == pytest.approx((4 * 0.15 + 2 * 0.2) / 6)


def test_wilson_interval_by_hand() -> None:
    assert wilson_interval(696, 1000) == pytest.approx((0.6668, 0.7237), abs=1e-4)
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson_interval(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)


@pytest.mark.parametrize(("proportion", "num"), [(0.87, 74), (0.99, 144), (0.5, 40)])
def test_the_interval_of_accuracy_covers_the_truth(proportion: float, num: int) -> None:
    rng = np.random.default_rng(1)
    inside = 0
    for hits in rng.binomial(num, proportion, TRIALS):
        low, high = wilson_interval(int(hits), num)
        inside += low <= proportion <= high
    assert 0.92 <= inside / TRIALS <= 0.98


@pytest.mark.parametrize(
    ("recalls", "sizes"),
    [
        ((0.9, 0.7, 0.8), (60, 30, 45)),
        (np.linspace(0.6, 1.0, 37), (20,) * 37),
        (np.linspace(0.6, 1.0, 37), (2,) * 37),
        ((0.99, 0.97), (50, 20)),
        ((0.99,) * 10, (36,) * 10),
        ((0.99, 0.99, 0.7), (1000, 1000, 3)),
        ((0.98, 0.8), (200, 10)),
        ((0.9,) * 4, (300, 100, 20, 10)),
    ],
)
def test_the_interval_of_balanced_accuracy_covers_the_truth(recalls: Sequence[float], sizes: Sequence[int]) -> None:
    rng = np.random.default_rng(2)
    inside = 0
    for hits in rng.binomial(sizes, recalls, (TRIALS, len(sizes))):
        low, high = mean_proportion_interval(hits, np.array(sizes))
        inside += low <= np.mean(recalls) <= high
    assert 0.92 <= inside / TRIALS <= 0.98


def test_the_interval_of_average_precision_covers_the_truth() -> None:
    rng = np.random.default_rng(2)
    truth = rng.random((20000, 3)) < (0.3, 0.5, 0.2)
    probabilities = rng.normal(size=truth.shape) + 1.5 * truth
    whole, inside = mean_average_precision(probabilities, truth), 0
    assert whole == pytest.approx(metrics.average_precision_score(truth, probabilities))
    coarse, counts = probabilities.round(1)[:500], rng.integers(0, 4, 500)  # with many ties, and weighted
    theirs = metrics.average_precision_score(truth[:500], coarse, sample_weight=counts)
    assert weighted_map(coarse, truth[:500])(counts) == pytest.approx(theirs)
    for _ in range(TRIALS):
        rows = rng.integers(0, len(truth), 120)
        low, high = bootstrap_interval(weighted_map(probabilities[rows], truth[rows]), len(rows), resamples=100)
        inside += low <= whole <= high
    assert 0.92 <= inside / TRIALS <= 0.98


@pytest.mark.parametrize(("shift", "num"), [(5.0, 60), (9.0, 10), (9.0, 1)])
def test_the_interval_of_a_nearly_perfect_average_precision(shift: float, num: int) -> None:
    rng = np.random.default_rng(2)
    truth = rng.random((20000, 3)) < 0.4
    probabilities = rng.normal(size=truth.shape) + shift * truth
    whole, inside = mean_average_precision(probabilities, truth), 0
    for _ in range(200):
        rows = rng.integers(0, len(truth), num)
        statistic = weighted_map(probabilities[rows], truth[rows])
        low, high = bootstrap_interval(statistic, num, resamples=40)
        inside += low <= whole <= high
        assert low <= statistic(np.ones(num, dtype=np.int64)) <= high
        assert low < high
    assert inside / 200 >= 0.92 or num == 1


def test_multi_label_scores() -> None:
    rng = np.random.default_rng(0)
    truth = rng.random((400, 3)) < (0.5, 0.2, 0.0)
    probabilities = 1 / (1 + np.exp(-(rng.normal(size=truth.shape) + 3 * truth - 2)))
    found = summarise(probabilities, truth, "abc", uncalibrated=probabilities, thresholds=(0.4, 0.6, 0.5))
    assert found.map == pytest.approx(metrics.average_precision_score(truth[:, :2], probabilities[:, :2]))
    assert found.balanced is None
    predicted = probabilities >= (0.4, 0.6, 0.5)
    for number, each in enumerate(found.classes[:2]):
        assert each.f1 == pytest.approx(metrics.f1_score(truth[:, number], predicted[:, number]))
    assert found.brier == pytest.approx(((probabilities - truth) ** 2).mean())
    assert found.top1 == pytest.approx(truth[np.arange(400), probabilities.argmax(axis=1)].mean())


def test_noise_of_the_calibration_error() -> None:
    """A perfectly calibrated model stays below it in 19 of 20 cases."""
    rng = np.random.default_rng(0)
    sure = rng.uniform(0.4, 1.0, 300)
    noise = calibration_noise(sure)
    errors = [calibration_error(sure, rng.random(300) < sure) for _ in range(4 * TRIALS)]
    assert 0.93 <= np.mean(np.array(errors) < noise) <= 0.97
    assert calibration_error(sure, rng.random(300) < sure - 0.15) > noise


@pytest.mark.parametrize(("accuracy", "num"), [(0.86, 740), (0.9, 200)])
def test_the_paired_test_has_the_false_positive_rate_it_claims(accuracy: float, num: int) -> None:
    """For two equally good models that are mostly correct on the same images."""
    rng = np.random.default_rng(3)
    alarms = covered = 0
    for _ in range(4 * TRIALS):
        easy = rng.random(num) < accuracy - 0.08
        first, second = (easy | (rng.random(num) < 0.36) for _ in range(2))
        paired = compare_hits(first, second)
        alarms += paired.significant
        covered += paired.interval[0] <= 0 <= paired.interval[1]
    assert 0.03 <= alarms / (4 * TRIALS) <= 0.07
    assert 0.92 <= covered / (4 * TRIALS) <= 0.98


def test_the_paired_test_detects_a_difference() -> None:
    first = np.arange(100) < 70
    second = np.arange(100) < 85
    paired = compare_hits(first, second)
    assert paired.significant
    assert paired.difference == pytest.approx(0.15)
    assert (paired.only_first, paired.only_second) == (0, 15)
    assert paired.p_value == pytest.approx(2**-15)  # two tails of 15 heads in a row, half of each counted
    assert compare_hits(first, first).p_value == 1.0


@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
def test_the_temperature_is_found(temperature: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4000, 10, generator=generator) * 3
    labels = torch.multinomial(logits.softmax(dim=1), 1, generator=generator)[:, 0]
    found = calibrate(logits * temperature, labels)
    assert found.temperature == pytest.approx(temperature, rel=0.06)
    assert found.ece_after is not None
    sure = found.probabilities(logits * temperature).double().max(dim=1).values.numpy()
    assert found.ece_after < calibration_noise(sure)
    assert found.n == 4000


def test_a_few_correct_images_do_not_make_it_overconfident() -> None:
    logits = torch.eye(3)[torch.arange(9) % 3] * 4
    found = calibrate(logits, torch.arange(9) % 3)
    assert 0.1 < found.temperature < 1.0
    assert calibrate(logits[:0], torch.arange(0)).temperature == 1.0
    assert calibrate(logits * torch.inf, torch.arange(9) % 3).temperature == 1.0


def test_the_limit_for_unknown_images() -> None:
    generator = torch.Generator().manual_seed(0)
    known = torch.randn(2000, 10, generator=generator) + 8 * torch.eye(10)[torch.arange(2000) % 10]
    found = calibrate(known, torch.arange(2000) % 10)
    fresh = torch.randn(4000, 10, generator=generator) + 8 * torch.eye(10)[torch.arange(4000) % 10]
    assert 0.03 <= found.unknown(fresh).double().mean() <= 0.07
    assert found.unknown(torch.randn(1000, 10, generator=generator)).double().mean() > 0.95
    assert calibrate(known[:18], torch.arange(18) % 10).limit is None, "too few for a rate of one in twenty"
    assert not Calibration().unknown(known).any()
    assert torch.allclose(free_energy(known, multi_label=False), -known.double().logsumexp(dim=1))


def test_each_label_has_its_own_threshold(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(500, 3, generator=generator) < torch.tensor([0.5, 0.1, 0.0])).float()
    logits = torch.randn(500, 3, generator=generator) + 3 * labels - torch.tensor([0.0, 4.0, 0.0])
    found = calibrate(logits, labels, multi_label=True)
    assert len(found.thresholds) == 3
    assert found.thresholds[2] == 0.5
    probabilities = found.probabilities(logits)
    for number in range(2):
        predicted = (probabilities[:, number] >= found.thresholds[number]).numpy()
        plain = (probabilities[:, number] >= 0.5).numpy()
        truth = labels[:, number].numpy()
        assert metrics.f1_score(truth, predicted) >= metrics.f1_score(truth, plain)
    write_calibration(tmp_path, found)
    assert read_calibration(tmp_path) == found
    assert read_calibration(tmp_path / "nowhere") == Calibration()
