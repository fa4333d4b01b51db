"""Transfer: one backbone over several data sets, chosen on validation images only, beside the paper's table."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import fill
from tests.contract.colours import TINY, exit_code, write_colours
from vitrail import create_model, save_weights
from vitrail.benchmark.transfer import (
    Backbone,
    DataResult,
    RecipeScore,
    SeedScore,
    common_reasons,
    make_means,
    make_rows,
    mean_of,
    paper_tables,
    plain_name,
    pool_seeds,
)
from vitrail.metric.interval import wilson_interval
from vitrail.verbs import transfer as verb
from vitrail.verbs.transfer import Transfer, transfer

SMALL = Backbone("vit_mu_patch4_gap_16", 20_000, (16, 16))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("transfer")
    save_weights(fill(create_model(TINY)), folder / "mu.safetensors")
    write_colours(folder / "colours", {"train": 20, "test": 4})
    return folder


def run_transfer(place: Path) -> Transfer:
    return transfer(
        place / "mu.safetensors",
        [f"Pets={place / 'colours'}", "digits"],
        model=TINY,
        examples=50,
        minutes=0.003,
        run=place / "runs",
    )


@pytest.fixture(scope="module")
def interrupted(place: Path) -> tuple[Transfer, dict[str, float], list[str]]:
    """A transfer that was stopped once: its result, when each run had ended before, and the order of all calls."""
    calls: list[str] = []

    def recorded(function: Any, limit: float) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            if len(calls) >= limit:
                raise KeyboardInterrupt
            path = options["run"] if "run" in options else args[0]
            calls.append(f"{function.__name__} {Path(path).relative_to(place / 'runs')}")
            return function(*args, **options)

        return call

    train, evaluate = verb.train, verb.evaluate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verb, "train", recorded(train, 5))
        patch.setattr(verb, "evaluate", recorded(evaluate, 5))
        with pytest.raises(KeyboardInterrupt):
            run_transfer(place)
        ended = {str(path): path.stat().st_mtime for path in (place / "runs").rglob("result.json")}
        assert not (place / "runs" / "transfer.json").exists()
        calls.clear()
        patch.setattr(verb, "train", recorded(train, math.inf))
        patch.setattr(verb, "evaluate", recorded(evaluate, math.inf))
        return run_transfer(place), ended, calls


def test_finished_runs_are_not_run_again(interrupted: Any) -> None:
    _, ended, calls = interrupted
    assert len(ended) == 4  # the probe was tested too
    assert all(Path(path).stat().st_mtime == time for path, time in ended.items())
    assert calls.count("evaluate Pets/probe/seed-0/run") == 0
    assert len([call for call in calls if call.startswith("train")]) == 8


def test_the_choice_is_made_on_validation_images(place: Path, interrupted: Any) -> None:
    result, _, calls = interrupted
    for data in result.data:
        (seed,) = data.scores["finetune"].seeds
        assert len(seed.tried) == 3
        assert seed.val == max(seed.tried.values())
        before = calls[: calls.index(f"evaluate {seed.run}")]
        assert all(f"train {Path(seed.run).parent / name}" in before for name in seed.tried)
        assert len([call for call in calls if call.startswith(f"evaluate {data.name}/finetune")]) == 1
        for name in seed.tried:
            found = json.loads((place / "runs" / Path(seed.run).parent / name / "result.json").read_text())
            assert found["test"] is None
            assert found["val"]["n"] == 10  # a fifth of the examples
    for data, num in zip(result.data, (12, 359), strict=True):
        assert (data.num_train, data.num_test) == (50, num)


def test_page_and_json(place: Path, interrupted: Any) -> None:
    result = interrupted[0]
    document = json.loads((place / "runs" / "transfer.json").read_text())
    assert document == json.loads(json.dumps(result.document()))
    pets, digits = (
        next(row for row in document["rows"] if row["title"] == name) for name in ("Oxford-IIIT Pets", "digits")
    )
    assert pets["scores"] == document["data"][0]["scores"]
    assert "50 training images instead of 3,680" in pets["reasons"]
    assert "3 classes instead of 37" in pets["reasons"]
    assert digits["reasons"] == ["not in the paper's table"]
    absent = [row for row in document["rows"] if row["name"] is None]
    assert len(absent) == 24
    assert {reason for row in absent for reason in row["reasons"]} == {"not given", "1 of 19 tasks given"}
    page = (place / "runs" / "transfer.html").read_text()
    assert "http" not in page.replace("https://arxiv.org/abs/2010.11929", "").replace("http-equiv", "")
    assert page.count('<td class="text why">not given</td>') == 23
    assert "97.56" in page


def test_draws(interrupted: Any) -> None:
    data_set = verb._open("digits", "digits", None)
    first, again, other = (data_set.draw(25, seed) for seed in (0, 0, 1))
    assert list(first.names) == list(again.names) != list(other.names)
    assert np.bincount(first.labels, minlength=10).min() >= 2
    assert len(first) == 25
    assert not set(first.names) & set(data_set.test.names)
    assert len(data_set.draw(10**6, 0)) == 1438


def test_a_test_split_is_held_out_where_there_is_none(tmp_path: Path) -> None:
    write_colours(tmp_path, {"train": 10})
    data_set = verb._open("colours", str(tmp_path / "train"), None)
    assert len(data_set.test) == 6
    assert not set(data_set.test.names) & set(data_set.pool.names)


def score_of(value: float, num: int = 100) -> RecipeScore:
    return pool_seeds([SeedScore(0, "run", value, value, num, {}, {}, 1.0)])


def test_one_seed_has_the_interval_of_its_images() -> None:
    found = score_of(0.8)
    assert found.interval == pytest.approx(wilson_interval(80, 100))
    assert found.spread is None


def test_seeds_that_differ_widen_the_interval() -> None:
    seeds = [SeedScore(number, "run", 0.5, value, 100, {}, {}, 1.0) for number, value in enumerate((0.7, 0.8, 0.9))]
    found = pool_seeds(seeds)
    assert found.value == pytest.approx(0.8)
    assert found.spread == pytest.approx(0.1)
    assert found.effective_num == pytest.approx(0.16 / (0.16 / 100 + 0.01 / 3))
    low, high = wilson_interval(80, 100)
    assert found.interval[0] < low < high < found.interval[1]


def results(*values: tuple[str, float]) -> list[DataResult]:
    return [DataResult(name, name, 10, 5000, 1000, 100, {"probe": score_of(value)}) for name, value in values]


def test_means_count_each_data_set_once() -> None:
    given = results(("SVHN", 0.5), ("CIFAR-100", 0.7), ("eurosat", 0.9), ("mine", 0.1))
    rows = make_rows(given, SMALL, ["probe"])
    means = {mean.title: mean for mean in make_means(given, rows, ["probe"])}
    assert means["All data sets given"].scores["probe"][0] == pytest.approx(0.55)
    natural, vtab = means["VTAB, natural"], means["VTAB, all groups"]
    assert (natural.num, natural.total, vtab.num, vtab.total) == (2, 7, 3, 19)
    assert natural.scores["probe"][0] == pytest.approx(0.6)
    assert natural.paper[0] == pytest.approx((0.889 + 0.855) / 2)  # the paper's, over the same tasks
    assert vtab.scores["probe"][0] == pytest.approx(0.7)
    assert "VTAB, structured" not in means
    value, (low, high) = mean_of([score_of(0.5), score_of(0.7)])
    assert low < value < high
    assert high - low < np.subtract(*score_of(0.6).interval[::-1])  # two data sets know more than one


def test_all_of_vtab_is_a_row_of_the_papers_table() -> None:
    tasks = [task for task in paper_tables().tasks if task.group != "table"]
    given = results(*((task.names[0], 0.5 + number / 100) for number, task in enumerate(tasks)))
    row = next(row for row in make_rows(given, SMALL, ["probe"]) if row.title == "VTAB, 19 tasks")
    assert row.scores["probe"].value == pytest.approx(0.59)
    assert row.reasons == ()


def test_the_papers_two_tables_agree() -> None:
    tables = paper_tables()
    for column in range(3):
        scores = [task.scores[column] for task in tables.tasks if task.group != "table"]
        assert len(scores) == 19
        assert np.mean(scores) == pytest.approx(tables.vtab[column], abs=0.02)


@pytest.mark.data
def test_the_groups_are_vtabs(data_dir: Path) -> None:
    listed = json.loads((data_dir / "imagenet" / "vtab_tasks.json").read_text())
    for group in ("natural", "specialized", "structured"):
        assert sum(task.group == group for task in paper_tables().tasks) == len(listed[group])


def test_reasons_follow_from_the_facts() -> None:
    task = next(task for task in paper_tables().tasks if task.title == "CIFAR-10")
    same = DataResult("cifar_10", "x", task.classes, task.train, task.train, task.test, {"probe": score_of(0.9)})
    large = Backbone("vit_large_patch16_384", 307_000_000, (384, 384))
    assert next(row for row in make_rows([same], large, ["probe"]) if row.title == "CIFAR-10").reasons == ()
    assert "pretrained on is not known" in common_reasons(large, ["finetune"], 2.0)[0]
    assert common_reasons(large, ["finetune"], 2.0)[1:] == ("at most 2 minutes per run",)
    resized = SMALL._replace(changes=("position table: 14 x 14 to 4 x 4",))
    assert "another image size; position table: 14 x 14 to 4 x 4" in common_reasons(resized, ["probe"], 2.0)[2]
    assert "other weights: vit_mu" in common_reasons(SMALL, ["probe"], 2.0)[0]
    assert plain_name("CIFAR-10") == plain_name("cifar_10")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["digits", "--recipes", "prob"], "UnknownNameError: no recipe has this name"),
        (["digits", "--recipes", "scratch"], "the recipe scratch does not transfer weights"),
        (["digits", "--recipes", "probe,probe"], "each recipe is named once"),
        (["digits", "DIGITS=digits"], "two data sets are called DIGITS"),
        (["=digits"], "a data set needs a name"),
        (["nowhere"], "UnknownNameError: no data has this name"),
        (["words"], "words cannot be transferred to"),
        (["labels.csv"], "labels cannot be transferred to"),
        (["digits", "--examples", "19"], "too many classes for so few training images"),
        (["digits", "--out", "page.txt"], "the page must be an HTML file"),
        (["digits", "--minutes", "-1"], "minutes: input should be greater than 0"),
        (["digits", "--model", "nonsense"], "no model has this name"),
    ],
)
def test_bad_input_is_refused_first(
    words: list[str], message: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    (place / "words" / "seven").mkdir(parents=True, exist_ok=True)
    (place / "words" / "seven" / "a.wav").write_bytes(b"RIFF")
    image = "colours/train/red/red000.png"
    (place / "labels.csv").write_text(f"path,labels\n{image},red;big\n{image},red\n")
    monkeypatch.setattr(verb, "train", lambda *_, **__: pytest.fail("training started"))
    assert (
        exit_code(
            ["transfer", "mu.safetensors", *words, "--run", "new", *([] if "--model" in words else ["--model", TINY])]
        )
        == 2
    )
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) <= 3
    assert not (place / "new").exists()


def test_weights_that_do_not_exist(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    assert exit_code(["transfer", "nowhere.safetensors", "digits", "--model", TINY, "--run", "new"]) == 2
    assert "WeightsError: there is no file" in capsys.readouterr().err
    assert not (place / "new").exists()
