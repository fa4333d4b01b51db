"""Regression: numbers from tables and folder names, trained by every recipe, predicted with a range that holds."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import r2_score

from tests.conftest import fill
from vitrail import create_model, evaluate, load, predict, save_weights, train
from vitrail.__main__ import main
from vitrail.data.check import check_source
from vitrail.data.find import open_data
from vitrail.errors import DataError, RunError, SpecError
from vitrail.kind.regression import stratify
from vitrail.metric.numbers import conformal_half_width, summarise_numbers
from vitrail.objective.regress import Regress
from vitrail.training.recipe.image.linear import cross_validate, fit_linear
from vitrail.training.view import SilentView

TINY = "vit_mu_patch4_gap_16"
FAST = ("batch_size=16", "precision=float32", "cache_gb=0.0", "steps=60", "eval_every=30", "small_until=0.0")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of grey images whose brightness is the number, 100 to 300."""
    folder = tmp_path_factory.mktemp("numbers")
    (folder / "images").mkdir()
    rng = np.random.default_rng(0)
    rows = []
    for number in range(160):
        level = rng.uniform(0, 1)
        pixels = np.clip(level * 200 + 20 + rng.normal(0, 10, (16, 16, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{number}.png")
        rows.append((f"images/{number}.png", f"{100 + 200 * level:.3f}", "train" if number < 120 else "test"))
    with (folder / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "Weight", "split"), *rows])
    save_weights(fill(create_model(TINY, num_classes=5), 0.2), folder / "model.safetensors")
    return folder


def run_of(home: Path, recipe: str, run: Path, **more: Any) -> Any:
    words = {"probe": (), "finetune": (*FAST, "lr=0.003")}.get(recipe, FAST)
    weights = None if recipe == "scratch" else home / "model.safetensors"
    return train(
        home / "table.csv", target="weight", model=TINY, weights=weights, recipe=recipe, run=run, settings=words, **more
    )


@pytest.fixture(scope="module")
def trained(home: Path) -> Path:
    run_of(home, "probe", home / "run")
    return home / "run"


@pytest.mark.parametrize("recipe", ["scratch", "finetune", "probe", "auto"])
def test_every_recipe_learns_the_number(recipe: str, home: Path, tmp_path: Path) -> None:
    result = run_of(home, recipe, tmp_path / "run")
    assert result.test.keys() >= {"mae", "r2", "n", "interval"}
    assert result.test["n"] == 40
    assert result.test["mae"] < 35, "the mean of the numbers is off by 50"
    assert result.test["interval"][0] < result.test["mae"] < result.test["interval"][1]
    assert (tmp_path / "run" / "report.html").is_file()
    assert "mean absolute error" in (tmp_path / "run" / "README.md").read_text()
    assert json.loads((tmp_path / "run" / "result.json").read_text())["test"] == result.test


def test_the_finished_model_predicts_the_number_itself(home: Path, trained: Path) -> None:
    """Not a standardised one: its outputs, the table of predictions and `predict` agree."""
    model = load(trained)
    assert model.about.kind == "regression"
    assert model.labels == ("weight",)
    (result,) = predict(trained, [home / "images" / "130.png"])
    number = result.prediction.number
    with (trained / "predictions.csv").open() as file:
        rows = {row["path"]: row for row in csv.DictReader(file)}
    row = rows["images/130.png"]
    assert float(row["predicted"]) == pytest.approx(number, rel=1e-4)
    half = model.calibration.half_width
    assert (result.prediction.low, result.prediction.high) == pytest.approx((number - half, number + half))
    assert abs(number - float(row["true"])) < 60


def test_evaluate(home: Path, trained: Path) -> None:
    found = evaluate(trained, home / "table.csv")
    stored = json.loads((trained / "result.json").read_text())["test"]
    assert found.mae == pytest.approx(stored["mae"], rel=1e-3)
    assert found.n == 40
    assert found.split == "test"
    with pytest.raises(DataError, match="evaluated alone"):
        evaluate(trained, home / "table.csv", tta=True)


def exit_code(words: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("sys.argv", ["vitrail", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code


def test_the_command_line(
    home: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    image = str(home / "images" / "130.png")
    assert exit_code(["predict", str(trained), image, "--json"], monkeypatch) == 0
    (document,) = json.loads(capsys.readouterr().out)
    assert document.keys() == {"path", "target", "value", "low", "high"}
    assert exit_code(["predict", str(trained), image, "--format", "csv"], monkeypatch) == 0
    assert capsys.readouterr().out.splitlines()[0] == '"path","value","low","high","error"'
    assert exit_code(["predict", str(trained), image], monkeypatch) == 0
    assert " to " in capsys.readouterr().out
    assert exit_code(["evaluate", str(trained), str(home / "table.csv"), "--json"], monkeypatch) == 0
    assert json.loads(capsys.readouterr().out).keys() >= {"mae", "r2", "interval", "coverage", "n", "target"}
    assert exit_code(["evaluate", str(trained), str(home / "table.csv")], monkeypatch) == 0
    assert "mean absolute error of weight" in capsys.readouterr().out
    assert exit_code(["explain", str(trained), image, "--out", str(tmp_path / "why")], monkeypatch) == 0
    assert "%" not in capsys.readouterr().out
    page = (tmp_path / "why" / "130.explained.html").read_text()
    assert "Regression head" in page
    assert "what raises it" in page


@pytest.mark.parametrize(
    "words",
    [
        ["export", "{run}", "--format", "onnx", "--out", "{out}"],
        ["serve", "{run}", "--port", "0"],
        ["figures", "{run}", "{table}", "--out", "{out}"],
        ["predict", "{run}", "{image}", "--copy-to", "{out}"],
        ["compare", "{run}", "{run}"],
    ],
)
def test_other_commands_refuse_it_by_name(
    words: list[str],
    home: Path,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {
        "run": trained,
        "out": tmp_path / "out",
        "table": home / "table.csv",
        "image": home / "images" / "1.png",
    }
    assert exit_code([word.format(**names) for word in words], monkeypatch) == 2
    output = capsys.readouterr().err
    assert "regression" in output
    assert "Traceback" not in output
    assert list(tmp_path.iterdir()) == []


def test_folds_are_for_classes(home: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="folds are for classification"):
        run_of(home, "probe", tmp_path / "run", folds=3)
    assert not (tmp_path / "run").exists()


def write(folder: Path, text: str) -> Path:
    (folder / "a.png").write_bytes(b"")
    (folder / "table.csv").write_text(text)
    return folder / "table.csv"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,age\na.png,old\na.png,3\n", "text in the column 'age'"),
        ("path,age\na.png,\na.png,3\n", "text in the column 'age'|without a number"),
        ("path,age\na.png,3\na.png,nan\n", r"without a number in the column 'age'[\s\S]*row 2"),
        ("path,age\na.png,inf\n", "without a number"),
        ("path,size\na.png,3\n", r"no column for the numbers to predict[\s\S]*path, size"),
    ],
)
def test_bad_numbers(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        open_data(write(tmp_path, text), target="age")


def test_one_number_is_nothing_to_learn(tmp_path: Path) -> None:
    rows = "\n".join("a.png,3" for _ in range(9))
    with pytest.raises(DataError, match=r"different numbers[\s\S]*9 images, all with 3"):
        train(write(tmp_path, f"path,age\n{rows}\n"), target="age", model=TINY, recipe="scratch", run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_class_folders_are_numbers_if_asked(tmp_path: Path) -> None:
    for name in ("3", "-1.5", "40"):
        (tmp_path / "data" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "data" / name / "a.png")
    table = open_data(tmp_path / "data", target="age")
    assert sorted(table.values.tolist()) == [-1.5, 3.0, 40.0]
    assert table.num_outputs == 1
    assert table.only([1]).values.tolist() == [table.values[1]]
    assert open_data(tmp_path / "data").classes
    (tmp_path / "data" / "old").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "data" / "old" / "a.png")
    with pytest.raises(DataError, match=r"classes that are not numbers[\s\S]*'old'"):
        open_data(tmp_path / "data", target="age")


def test_parquet(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table({"path": ["a.png", "b.png"], "age": pa.array([3, 4], pa.int16())})
    parquet.write_table(table, tmp_path / "table.parquet")
    assert open_data(tmp_path / "table.parquet", target="age").values.tolist() == [3.0, 4.0]


def test_low_and_high_numbers_are_held_out_alike(home: Path) -> None:
    table = open_data(home / "table.csv", target="weight")
    strata = stratify(table)
    assert strata.values is None
    assert len(strata.classes) == 8
    counts = np.bincount(strata.labels)
    assert counts.max() - counts.min() <= 1


def test_folding_rescales_every_head() -> None:
    torch.manual_seed(0)
    model = fill(create_model(TINY, num_classes=1), 0.3)
    objective, images = Regress(mean=50.0, std=7.0), torch.randn(4, 3, 16, 16)
    before = objective.answers(model, {"image": images})["number"]
    objective.fold_into(model.heads)
    assert torch.allclose(model(images)[:, 0], before, rtol=1e-5)


def test_the_loss_does_not_know_the_unit() -> None:
    torch.manual_seed(0)
    model, images, labels = fill(create_model(TINY, num_classes=1)), torch.randn(6, 3, 16, 16), torch.randn(6)
    small = Regress(mean=0.0, std=1.0)(model, {"image": images, "label": labels})
    large = Regress(mean=3e4, std=1e4)(model, {"image": images, "label": labels * 1e4 + 3e4})
    assert torch.allclose(small, large, atol=1e-4)


def test_scores_of_numbers() -> None:
    rng = np.random.default_rng(0)
    true = rng.normal(10, 3, 400)
    predicted = true + rng.normal(0, 1, 400)
    found = summarise_numbers(predicted, true, half_width=1.0)
    errors = np.abs(predicted - true)
    assert found.mae == pytest.approx(errors.mean())
    assert found.r2 == pytest.approx(r2_score(true, predicted))
    assert found.coverage == pytest.approx((errors <= 1.0).mean())
    spread = 1.96 * errors.std() / 20
    assert found.interval == pytest.approx((errors.mean() - spread, errors.mean() + spread), abs=0.03)
    assert summarise_numbers(predicted, np.full(400, 3.0), half_width=None).r2 is None


@pytest.mark.parametrize("num", [20, 100, 999])
def test_ranges_hold_what_they_promise(num: int) -> None:
    """Over many draws, a new number is inside with the stated probability."""
    rng = np.random.default_rng(num)
    held = [
        abs(rng.standard_t(3)) <= (conformal_half_width(np.abs(rng.standard_t(3, num)), 0.9) or 0) for _ in range(4000)
    ]
    assert 0.88 < np.mean(held) < 0.93
    assert conformal_half_width(np.ones(8), 0.9) is None, "too few images for such a promise"


def test_ridge_regression_is_chosen_by_cross_validation() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(1, 120, 20, generator=generator)
    numbers = features[0] @ torch.randn(20, generator=generator) + 0.1 * torch.randn(120, generator=generator)
    chosen = cross_validate(features, numbers, folds=5, multi_label=False, seed=0, view=SilentView())
    assert chosen.logits.shape == (120, 1)
    assert (chosen.logits[:, 0] - numbers).abs().mean() < 0.5
    linear = fit_linear(features, numbers, c_value=chosen.c_value, multi_label=False)
    assert (linear(features[0])[:, 0] - numbers).abs().mean() < 0.3


def test_a_range_needs_enough_images(home: Path, tmp_path: Path) -> None:
    """Without one, the answer is a number alone."""
    lines = (home / "table.csv").read_text().splitlines()
    (home / "few.csv").write_text("\n".join([lines[0], *lines[1:9]]))
    result = train(
        home / "few.csv", target="weight", model=TINY, recipe="scratch", run=tmp_path / "run", settings=("steps=1",)
    )
    assert result.val["coverage"] is None
    (found,) = predict(tmp_path / "run", [home / "images" / "1.png"])
    assert found.prediction.low is None


def test_a_table_of_predictions_may_begin_with_an_unreadable_image(
    home: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    words = ["predict", str(trained), str(tmp_path / "a.png"), str(home / "images" / "1.png"), "--format", "csv"]
    assert exit_code(words, monkeypatch) == 0
    first, second = csv.DictReader(capsys.readouterr().out.splitlines())
    assert first["error"]
    assert first["value"] == ""
    assert float(second["low"]) < float(second["value"]) < float(second["high"])


def test_weights_of_another_regression_start_at_the_mean(home: Path, tmp_path: Path) -> None:
    """Their head predicts numbers of another scale."""
    lines = (home / "table.csv").read_text().splitlines()
    rows = [line.split(",") for line in lines[1:]]
    (home / "large.csv").write_text(
        "\n".join([lines[0], *(f"{path},{1e6 * float(number)},{split}" for path, number, split in rows)])
    )
    options: dict[str, Any] = {"target": "weight", "model": TINY}
    train(home / "large.csv", **options, recipe="scratch", run=tmp_path / "large", settings=FAST)
    settings = ("steps=1", "batch_size=16", "precision=float32", "cache_gb=0.0")
    result = train(
        home / "table.csv",
        **options,
        weights=tmp_path / "large",
        recipe="finetune",
        run=tmp_path / "small",
        settings=settings,
    )
    assert result.test["mae"] < 80


def test_a_table_in_memory(home: Path, tmp_path: Path) -> None:
    table = open_data(home / "table.csv", target="weight")
    result = train(table, model=TINY, recipe="scratch", run=tmp_path / "run", settings=("steps=1", "batch_size=16"))
    assert "mae" in result.val
    assert load(tmp_path / "run").labels == ("number",)
    (tmp_path / "1").mkdir()
    classes = replace(table, classes=("3", "4"), labels=np.arange(len(table), dtype=np.int32) % 2, values=None)
    result = train(
        classes,
        target="age",
        model=TINY,
        recipe="scratch",
        run=tmp_path / "other",
        settings=("steps=1", "batch_size=16"),
    )
    assert load(tmp_path / "other").labels == ("age",)


def test_copies_with_different_numbers_contradict(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    for name in ("a.png", "b.png"):
        Image.fromarray(noise).save(tmp_path / name)
    (tmp_path / "table.csv").write_text("path,age\na.png,3\nb.png,90\n")
    findings = check_source(open_data(tmp_path / "table.csv", target="age")).findings
    assert {finding.kind for finding in findings} == {"duplicate", "contradiction"}
    assert any("labelled 90 instead of 3" in finding.detail for finding in findings)


def test_settings_for_classes_are_refused(home: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="class weights are for classes"):
        train(
            home / "table.csv",
            target="weight",
            model=TINY,
            recipe="scratch",
            run=tmp_path / "run",
            settings=("class_weights=true", "steps=1"),
        )


def test_another_target_is_another_run(home: Path, trained: Path) -> None:
    with pytest.raises(RunError, match="target"):
        train(
            home / "table.csv",
            model=TINY,
            weights=home / "model.safetensors",
            recipe="probe",
            run=trained,
            target="Weight",
        )
