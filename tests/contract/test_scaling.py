"""Laws recover their constants or say why they cannot; `vitrail scaling` measures, resumes, forecasts and refuses."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import fill
from vitrail import create_model, save_weights
from vitrail.data.find import open_data
from vitrail.data.table import Table
from vitrail.errors import DataError, SpecError, UnknownNameError, WeightsError
from vitrail.metric.law import UndecidedLawError, fit_law
from vitrail.metric.scaling import (
    compare_ladders,
    describe_check,
    describe_scaling,
    ladder_sizes,
    nested_order,
    read_scaling,
)
from vitrail.report.run import REPORT
from vitrail.run.directory import RESULT, SCALING
from vitrail.verbs import scaling as verb
from vitrail.verbs.scaling import scaling
from vitrail.verbs.train import train

TINY = "vit_mu_patch4_gap_8"
DECK = {"a": 0.12, "b": 0.63, "c": 0.52, "d": 0.32}  # arXiv 2106.04560, figure 1
SIZES = np.geomspace(0.01, 1e4, 12)


def deck_errors(seed: int, num_runs: int = 1, noise: float = 0.02) -> np.ndarray:
    exact = DECK["a"] + DECK["b"] * (SIZES + DECK["c"]) ** -DECK["d"]
    return exact[:, None] * (1 + noise * np.random.default_rng(seed).standard_normal((12, num_runs)))


@pytest.mark.parametrize("num_runs", [1, 3])
def test_the_decks_constants_lie_within_their_intervals(num_runs: int) -> None:
    """In 20 draws here; 100 draws gave 91 to 96 (one run) and 90 to 94 (three)."""
    laws = [fit_law(SIZES, deck_errors(seed, num_runs)) for seed in range(20)]
    assert all(law.saturates for law in laws)
    for name, true in DECK.items():
        inside = sum(law.intervals[name][0] <= true <= law.intervals[name][1] for law in laws)
        assert inside >= 17, name
    widths = [law.intervals["d"][1] - law.intervals["d"][0] for law in laws]
    assert np.median(widths) < 0.15  # an interval that says something


def test_exact_points_give_the_constants_back() -> None:
    law = fit_law(SIZES, deck_errors(0, noise=0.0))
    assert law.constants == pytest.approx(DECK, rel=1e-3)
    beyond = DECK["a"] + DECK["b"] * (1e5 + DECK["c"]) ** -DECK["d"]
    assert law.forecast(1e5).value == pytest.approx(beyond, rel=1e-4)


def test_a_power_law_is_used_if_it_suffices_but_the_forecast_allows_for_saturation() -> None:
    sizes = np.geomspace(10, 1000, 12)
    noise = np.random.default_rng(1).standard_normal((12, 1))
    law = fit_law(sizes, 2 * sizes[:, None] ** -0.4 * (1 + 0.02 * noise))
    assert not law.saturates
    assert law.a == law.c == 0
    assert law.intervals["d"][0] < 0.4 < law.intervals["d"][1]
    forecast = law.forecast(4000)
    true = 2 * 4000**-0.4
    assert forecast.interval[0] < true < forecast.interval[1]
    assert forecast.interval[1] - true > true - forecast.interval[0]


@pytest.mark.parametrize(
    ("sizes", "errors", "reason"),
    [
        ([1, 2, 4, 8], [0.5, 0.4, 0.3, 0.25], "4 constants need at least 5 sizes, and there are 4"),
        ([1, 2, 3, 4, 5, 6], [0.9, 0.8, 0.7, 0.6, 0.5, 0.4], "straight line"),
        ([1, 2, 4, 8, 16, 32], [0.1, 0.15, 0.22, 0.31, 0.38, 0.46], "the error rises"),
        ([1, 2, 4, 8, 16, 32], [0.3, 0.31, 0.29, 0.3, 0.31, 0.3], "does not fall beyond its noise"),
        ([1, 2, 4, 8, 16, 32], [0.0] * 6, "no errors left to fall"),
        ([1, 2, 4, 8, 16, 32], [0.3, 0.2, float("nan"), 0.1, 0.1, 0.1], "errors finite"),
    ],
)
def test_points_that_cannot_tell_are_refused_with_the_reason(
    sizes: list[float], errors: list[float], reason: str
) -> None:
    with pytest.raises(UndecidedLawError, match=reason):
        fit_law(sizes, [[error] for error in errors])


def test_subsets_are_nested_and_stratified() -> None:
    labels = np.repeat([0, 1, 2], [100, 60, 40])
    sizes = ladder_sizes(200, 3)
    assert sizes[-1] == 200
    assert sum(2 * size <= 200 for size in sizes) == 6
    order = nested_order(labels, np.random.default_rng(0))
    assert sorted(order) == list(range(200))
    for size in sizes:
        counts = np.bincount(labels[order[:size]], minlength=3)
        assert np.abs(counts - size * np.array([0.5, 0.3, 0.2])).max() <= 1.5


def test_the_answer_in_words_and_its_check() -> None:
    random = np.random.default_rng(0)
    sizes = ladder_sizes(1000, 10)
    accuracies = {n: 1 - (0.05 + 2 * n**-0.6) * (1 + 0.02 * random.standard_normal(3)) for n in sizes}
    result = describe_scaling(accuracies, 2000)
    assert result.verdict.startswith("With twice the images (2,000) ")
    assert result.check is not None
    assert result.check.inside
    assert "Checked: from half of the images" in describe_check(result)
    low, high = result.forecast[0].interval
    assert low < 1 - (0.05 + 2 * 2000**-0.6) < high
    assert read_scaling(json.loads(json.dumps(result.document()))) == result
    undecided = describe_scaling({n: [0.5, 0.51, 0.49] for n in sizes}, 2000)
    assert undecided.verdict == "The law cannot tell: the error does not fall beyond its noise."
    assert undecided.law is None


@pytest.fixture(scope="module")
def digits() -> Table:
    """300 digits, 100 of them to test on."""
    table = open_data("digits")
    rows = np.random.default_rng(0).permutation(len(table))[:300]
    return replace(table.only(rows), splits=np.repeat([0, 2], [200, 100]).astype(np.int8))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    save_weights(fill(create_model(TINY, num_classes=5), 0.2), path)
    return path


def test_a_probe_of_digits(digits: Table, weights: Path, tmp_path: Path) -> None:
    result = scaling(digits, model=TINY, weights=weights, seeds=2, out=tmp_path / "page.html")
    document = result.document()
    assert document.keys() >= {"points", "law", "forecast", "verdict", "check"}
    assert [each["n"] for each in document["points"]] == ladder_sizes(200, 10)
    assert [len(each["runs"]) for each in document["points"]] == [2] * (len(document["points"]) - 1) + [1]
    assert document["points"][-1]["value"] > document["points"][0]["value"]
    page = (tmp_path / "page.html").read_text()
    assert result.verdict in page
    assert "<svg" in page


def test_an_interrupted_ladder_of_runs_resumes_without_repeating(
    digits: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "ladder_sizes", lambda *_: [40, 48, 56, 64, 80, 100, 200])
    options = {"model": TINY, "seeds": 1, "run": tmp_path / "ladder", "settings": ["steps=2", "batch_size=8"]}
    started: list[str] = []

    def train_some(*words: object, run: Path, **more: object) -> object:
        if len(started) == 2:
            raise KeyboardInterrupt
        started.append(run.name)
        return train(*words, run=run, **more)

    with monkeypatch.context() as patch:
        patch.setattr(verb, "train", train_some)
        with pytest.raises(KeyboardInterrupt):
            scaling(digits, **options)
    assert started == ["40-0", "48-0"]
    times = {name: (tmp_path / "ladder" / name / RESULT).stat().st_mtime_ns for name in started}
    result = scaling(digits, **options)
    assert [each.n for each in result.images.points] == [40, 48, 56, 64, 80, 100, 200]
    assert times == {name: (tmp_path / "ladder" / name / RESULT).stat().st_mtime_ns for name in started}
    steps = {json.loads(path.read_text())["steps"] for path in (tmp_path / "ladder").glob(f"*/{RESULT}")}
    assert steps == {2}


def falling(sizes: list[int], lowest: float) -> dict[int, np.ndarray]:
    random = np.random.default_rng(0)
    return {n: 1 - (lowest + 2 * n**-0.6) * (1 + 0.01 * random.standard_normal(3)) for n in sizes}


@pytest.mark.parametrize(
    ("images", "times", "words"),
    [
        (0.02, 0.3, "Labels are worth more than time here."),
        (0.3, 0.02, "Time is worth more than labels here."),
        (0.1, 0.1, "the intervals overlap"),
        (0.1, None, "the laws cannot tell"),
    ],
)
def test_labels_or_time(images: float, times: float | None, words: str) -> None:
    sizes = ladder_sizes(1000, 10)
    by_time = {n: [0.5, 0.51, 0.49] for n in sizes} if times is None else falling(sizes, times)
    found = [describe_scaling(falling(sizes, images), 5000), describe_scaling(by_time, 5000, unit="steps")]
    assert words in compare_ladders(*found)
    if times is not None:
        assert found[1].verdict.startswith("With twice the steps (2,000) ")
        assert "from half of the steps" in describe_check(found[1])


def test_ladders_of_times_and_models(digits: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "ladder_sizes", lambda *_: [40, 48, 56, 64, 80, 100, 200])
    monkeypatch.setattr(verb, "MIN_LADDER", 1)
    options = {"model": TINY, "seeds": 1, "run": tmp_path / "ladder", "settings": ["steps=32", "batch_size=8"]}
    larger = "vit_mu_patch2_gap_8"
    result = scaling(digits, times=True, models=[larger], out=tmp_path / "page.html", **options)
    assert result.times is not None
    assert [each.n for each in result.times.points] == [1, 2, 4, 8, 16, 32]
    assert result.times.points[-1].value == result.images.points[-1].value
    assert result.models is not None
    assert [each.name for each in result.models.points] == [TINY, larger]
    assert result.models.points[0].value == result.images.points[-1].value
    assert "at least 5 sizes" in result.models.verdict
    document = result.document()
    assert document["times"]["unit"] == "steps"
    assert document["verdict"].startswith(result.images.verdict)
    page = (tmp_path / "page.html").read_text()
    assert page.count("<svg") == 3
    assert "training steps" in page


def test_ladders_that_cannot_be_measured_are_refused(digits: Table, weights: Path) -> None:
    with pytest.raises(SpecError, match="a probe is fitted until it ends"):
        scaling(digits, model=TINY, weights=weights, times=True)
    with pytest.raises(SpecError, match="weights are those of one model"):
        scaling(digits, model=TINY, weights=weights, recipe="finetune", models=["vit_mu_patch2_gap_8"])
    with pytest.raises(SpecError, match="the models must differ"):
        scaling(digits, model=TINY, models=[TINY])
    with pytest.raises(UnknownNameError):
        scaling(digits, model=TINY, models=["vit_muu"])


def test_the_report_of_auto_says_what_more_data_would_bring(digits: Table, weights: Path, tmp_path: Path) -> None:
    words = ["steps=1", "batch_size=8", "cache_gb=0.0"]
    train(digits, model=TINY, weights=weights, recipe="auto", run=tmp_path / "run", settings=words)
    found = read_scaling(json.loads((tmp_path / "run" / SCALING).read_text()))
    page = (tmp_path / "run" / REPORT).read_text()
    assert "What would more data bring?" in page
    assert found.verdict in page


def test_no_section_for_a_run_without_a_probe(digits: Table, tmp_path: Path) -> None:
    words = ["steps=1", "batch_size=8", "cache_gb=0.0"]
    train(digits, model=TINY, recipe="auto", run=tmp_path / "run", settings=words)
    assert not (tmp_path / "run" / SCALING).exists()
    assert "What would more data bring?" not in (tmp_path / "run" / REPORT).read_text()


def test_unsuitable_data_is_refused(digits: Table, weights: Path) -> None:
    numbers = digits.as_numbers()
    multi_label = replace(digits, starts=np.arange(len(digits) + 1))
    few = digits.only(range(40, 100))
    for table, message in (
        (numbers, "one label each"),
        (multi_label, "one label each"),
        (few, "too few images for a ladder"),
    ):
        with pytest.raises(DataError, match=message):
            scaling(table, model=TINY, weights=weights)


def test_unsuitable_requests_are_refused(digits: Table, weights: Path) -> None:
    with pytest.raises(WeightsError, match="the recipe probe needs pretrained weights"):
        scaling(digits, model=TINY, recipe="probe")
    with pytest.raises(SpecError, match="for recipes that classify images"):
        scaling(digits, weights=weights, recipe="language")
    with pytest.raises(SpecError, match="every size must train the same model"):
        scaling(digits)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "UnknownNameError: no data has this name"),
        (["digits", "--recipe", "probe"], "WeightsError: the recipe probe needs pretrained weights"),
        (["text.txt"], "text.txt is not data that Vitrail can read"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_two(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from vitrail import __main__ as entry

    (tmp_path / "text.txt").write_text("to be or not to be")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["vitrail", "scaling", *words, "--model", TINY])
    with pytest.raises(SystemExit) as stopped:
        entry.main()
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
