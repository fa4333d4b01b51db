"""The scores, report and card of a run, comparisons of runs, and errors in their files."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from tests.conftest import copy_unsummed
from tests.contract.colours import exit_code, learn, pixels_of, write_colours
from tests.contract.small_images import write_shards
from vitrail import VitClassifier, compare, evaluate, load, train
from vitrail.calibration import Calibration
from vitrail.data.find import open_data
from vitrail.errors import DataError, RunError, WeightsError
from vitrail.report.chart import Line, line_chart, reliability_chart
from vitrail.report.percent import percent
from vitrail.report.run import confusion_table, write_report
from vitrail.report.thumbnails import thumbnail
from vitrail.run.predictions import prediction_rows, read_predictions, suspects


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs on colours: one that learned, one with swapped labels, and one with other test images."""
    folder = tmp_path_factory.mktemp("report")
    write_colours(folder / "data", {"train": 20, "val": 10, "test": 20})
    learn(folder / "data", folder / "good")
    write_colours(folder / "swapped", {"train": 20, "val": 10, "test": 20}, swapped=14)
    learn(folder / "swapped", folder / "poor", "steps=30")
    write_colours(folder / "other", {"train": 20, "val": 10, "testing": 20})
    learn(folder / "other", folder / "elsewhere", "steps=20")
    return folder


def test_the_files_of_a_run_agree(home: Path) -> None:
    run = home / "poor"
    account, result = (json.loads((run / f"{name}.json").read_text()) for name in ("account", "result"))
    rows = [row for row in read_predictions(run / "predictions.csv") if row.split == "test"]
    assert len(rows) == account["test"]["n"] == 60
    right = np.mean([row.right for row in rows])
    assert right == pytest.approx(account["test"]["top1"])
    assert result["test"]["top1"] == pytest.approx(right)
    assert result["test"]["interval"] == pytest.approx(account["test"]["interval"])
    again = evaluate(run, home / "data")
    for key in ("top1", "balanced", "ece", "ece_noise", "brier", "uncalibrated_ece"):
        assert getattr(again, key) == pytest.approx(account["test"][key], abs=1e-5), key
    assert again.unknown == pytest.approx(np.mean([row.unknown for row in rows]))
    page = (run / "report.html").read_text()
    assert percent(float(right)) in page
    assert page.count("<li><div") >= min(12, sum(not row.right for row in rows)), "images of errors"


def test_a_failing_report_does_not_cost_the_model(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr("vitrail.kind.classification.write_report", fails)
        with pytest.raises(ZeroDivisionError):
            learn(home / "data", home / "failed", "steps=2")
    assert load(home / "failed").labels == ("blue", "green", "red")
    assert not (home / "failed" / "report.html").exists()
    learn(home / "data", home / "failed", "steps=2")
    assert (home / "failed" / "report.html").exists(), "the same command writes it"


def test_runs_of_earlier_versions(home: Path, tmp_path: Path) -> None:
    run = tmp_path / "old"
    copy_unsummed(home / "good", run)
    for name in ("calibration.json", "account.json", "predictions.csv", "report.html"):
        (run / name).unlink()
    result = json.loads((run / "result.json").read_text())
    for split in ("val", "test"):
        del result[split]["interval"]
    (run / "result.json").write_text(json.dumps(result))
    assert load(run).calibration == Calibration()
    training = learn(home / "data", run)
    assert training.val["n"] == 30
    assert exit_code(["evaluate", str(run), str(home / "data"), "--quiet"]) == 0
    with pytest.raises(RunError, match="earlier version"):
        learn(home / "data", run, folds=2)
    assert not (run / "folds").exists()
    result["val"] = {"map": 0.5, "n": 30}
    (run / "result.json").write_text(json.dumps(result))
    assert load(run).calibration.multi_label


def test_names_that_are_not_plain_text(tmp_path: Path) -> None:
    for number in range(24):
        name = ("blue", "red")[number % 2]
        odd = (b"a\rb", b"c\nd", b'"e",', b"\xff\xfe")[number // 2 % 4]
        path = Path(os.fsdecode(bytes(tmp_path / "data" / ("train", "val")[number // 2 % 2 and number > 11] / name)))
        path.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels_of(name, number)).save(path / os.fsdecode(odd + str(number).encode() + b".png"), "PNG")
    learn(tmp_path / "data", tmp_path / "run", "steps=2")
    rows = read_predictions(tmp_path / "run" / "predictions.csv")
    assert sorted(row.path for row in rows) == sorted(open_data(tmp_path / "data").split("val").names)
    assert (tmp_path / "run" / "report.html").read_text().count("data:image/jpeg") >= len(rows)


def test_unreadable_images_are_left_out_and_counted(tmp_path: Path) -> None:
    write_colours(tmp_path / "data", {"train": 12, "val": 4})
    broken = [
        tmp_path / "data" / split / "red" / f"red{number:03d}.png" for split, number in (("train", 0), ("val", 1))
    ]
    for path in broken:
        path.write_bytes(b"nothing")
    with pytest.raises(DataError, match="on_error=skip"):
        learn(tmp_path / "data", tmp_path / "run", "steps=4")
    result = learn(tmp_path / "data", tmp_path / "run", "steps=4", "on_error=skip")  # the failed run does not hinder it
    assert result.val["n"] == 11
    facts = json.loads((tmp_path / "run" / "account.json").read_text())["facts"]
    assert sorted(facts["skipped"]) == ["train/red/red000.png", "val/red/red001.png"]
    assert facts["num_train"] == 35
    assert "Skipped 2 unreadable images: train/red/red000.png" in result.story[-1]


def test_a_run_is_not_overwritten(home: Path) -> None:
    with pytest.raises(RunError, match="holds another run"):
        learn(home / "data", home / "good", "steps=7")


def test_an_early_interrupt_says_that_nothing_was_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    write_colours(tmp_path / "data", {"train": 6, "val": 2})
    monkeypatch.setattr("vitrail.training.recipe.scratch.train", interrupted)
    with pytest.raises(KeyboardInterrupt, match="the same command starts again"):
        learn(tmp_path / "data", tmp_path / "run")


def test_a_probe_needs_weights(home: Path, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="needs pretrained weights"):
        train(home / "data", recipe="probe", run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_images_in_memory_are_the_same_only_if_all_are(tmp_path: Path) -> None:
    pixels = np.stack([pixels_of(name, number) for number in range(12) for name in ("blue", "red")])
    for run, images in (("one", pixels), ("other", pixels[::-1].copy()), ("again", pixels)):
        settings = ("steps=2", "model.depth=1", "batch_size=8")
        VitClassifier(settings=settings, run=tmp_path / run).fit(images, ["blue", "red"] * 12)
    comparison = compare([tmp_path / name for name in ("one", "other", "again")], page=tmp_path / "page.html")
    assert [pair.paired is None for pair in comparison.pairs] == [True, False]


def test_a_missing_label_of_multi_label_data_is_suspect() -> None:
    calibration = Calibration(multi_label=True)
    logits = torch.tensor([[4.0, -4.0], [4.0, -4.0], [4.0, 4.0], [0.2, -4.0]])
    truth = torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
    rows = prediction_rows("val", ["fine", "too many", "too few", "unsure"], logits, truth, ["cat", "dog"], calibration)
    assert [row.right for row in rows] == [True, False, False, False]
    assert sorted(row.path for row in suspects(rows)) == ["too few", "too many"]


def test_evaluating_on_training_images_prints_a_note(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    write_colours(tmp_path / "data", {"train": 12})
    (tmp_path / "data" / "train").rename(tmp_path / "all")
    learn(tmp_path / "all", tmp_path / "run", "steps=2")
    assert exit_code(["evaluate", str(tmp_path / "run"), str(tmp_path / "all")]) == 0
    assert "was trained on these images" in capsys.readouterr().err
    assert not evaluate(home / "good", home / "data").learned_from
    assert evaluate(home / "good", home / "data", split="train").learned_from


def test_images_listed_twice_are_paired_in_order(home: Path, tmp_path: Path) -> None:
    paths = sorted((home / "data" / "test").glob("*/*.png"))[::3]
    rows = [f"{path},{('red', path.parent.name)[number % 2]}" for path in paths for number in range(2)]
    (tmp_path / "table.csv").write_text("\n".join(["path,label", *rows]))
    compared = evaluate(home / "good", tmp_path / "table.csv", compare=home / "good").compared
    assert compared is not None
    assert (compared.difference, compared.n) == (0.0, len(rows))


def test_the_card_has_front_matter(home: Path) -> None:
    card = (home / "good" / "README.md").read_text()
    _, front, text = card.split("---\n", 2)
    metadata = yaml.safe_load(front)
    account = json.loads((home / "good" / "account.json").read_text())
    assert metadata["model-index"][0]["results"][0]["metrics"][0]["value"] == pytest.approx(
        account["test"]["top1"], abs=1e-4
    )
    assert "95 % interval" in text
    assert f"{100 * account['test']['ece']:.2f} %" in text
    assert "## Limitations" in text


def test_text_from_files_is_escaped(tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)>"
    for name in ("blue", "red"):
        for number in range(12):
            label = evil if name == "red" else "</script><b>"
            path = (
                tmp_path / "data" / ("train" if number < 8 else "val") / label.replace("/", "\\") / f"{number}<i>.png"
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels_of(name, number)).save(path)
    learn(tmp_path / "data", tmp_path / "run", "steps=2")
    learn(tmp_path / "data", tmp_path / "other", "steps=3")
    compare([tmp_path / "run", tmp_path / "other"], page=tmp_path / "page.html")
    for page in (tmp_path / "run" / "report.html", tmp_path / "page.html"):
        text = page.read_text()
        assert evil not in text
        assert "<i>" not in re.sub(r"<i style[^>]*>", "", text)
        assert len(re.findall("</script>", text)) == len(re.findall("<script", text))


def test_a_report_without_curves_or_images(home: Path, tmp_path: Path) -> None:
    """For shards, whose images are found by reading them all; and for images that are gone, which are left out."""
    for split in ("train", "val"):
        write_shards(tmp_path / "shards" / split, 24)
    learn(tmp_path / "shards", tmp_path / "run", "steps=2")
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count("data:image/jpeg") > 10
    source = open_data(home / "data")
    (home / "good" / "report.html").rename(home / "good" / "before.html")
    gone = source.only(range(3))
    write_report(home / "good", gone, model=load(home / "good"))
    assert (home / "good" / "report.html").stat().st_size < (home / "good" / "before.html").stat().st_size
    (home / "good" / "before.html").replace(home / "good" / "report.html")


def test_multi_label_run(tmp_path: Path) -> None:
    rows = ["path,labels"]
    for number in range(40):
        name = ("blue", "green", "red")[number % 3]
        (tmp_path / "images").mkdir(exist_ok=True)
        Image.fromarray(pixels_of(name, number)).save(tmp_path / "images" / f"{number}.png")
        rows.append(f"images/{number}.png,{name}" + (";bright" if number % 2 else ""))
    (tmp_path / "table.csv").write_text("\n".join(rows) + "\n")
    result = learn(tmp_path / "table.csv", tmp_path / "run", "steps=40", "val_share=0.5")
    account = json.loads((tmp_path / "run" / "account.json").read_text())["val"]
    assert account["map"] == pytest.approx(result.val["map"])
    assert account["map_interval"][0] < account["map"] <= account["map_interval"][1]
    evaluation = evaluate(tmp_path / "run", tmp_path / "table.csv")
    assert evaluation.map is not None
    assert 0.3 < evaluation.map <= 1.0
    assert "mean average precision" in (tmp_path / "run" / "report.html").read_text()
    assert any(" | " in row.label for row in read_predictions(tmp_path / "run" / "predictions.csv"))
    write_colours(tmp_path / "single", {"test": 2})
    assert evaluate(tmp_path / "run", tmp_path / "single").n == 6, "single-label data can be evaluated too"


def test_a_single_label_model_rejects_multi_label_data(home: Path, tmp_path: Path) -> None:
    Image.fromarray(pixels_of("red", 1)).save(tmp_path / "1.png")
    (tmp_path / "table.csv").write_text("path,labels\n1.png,red;blue\n")
    with pytest.raises(DataError, match="one label per image"):
        evaluate(home / "good", tmp_path / "table.csv")


def test_which_run_is_better(home: Path, tmp_path: Path) -> None:
    comparison = compare([home / "good", home / "poor"], page=tmp_path / "page.html")
    (pair,) = comparison.pairs
    assert pair.paired is not None
    assert pair.n == 60
    assert pair.significant
    scores = [each.score for each in comparison.entries]
    assert pair.paired.difference == pytest.approx(scores[1] - scores[0])
    assert "steps" in comparison.differences
    assert comparison.differences["steps"] == ["60", "30"]
    page = (tmp_path / "page.html").read_text()
    assert "The difference is statistically significant" in page
    same = compare([home / "good", home / "good"], page=tmp_path / "same.html")
    assert same.pairs[0].paired is not None
    assert same.pairs[0].paired.p_value == 1.0
    assert not same.pairs[0].significant
    evaluation = evaluate(home / "poor", home / "data", compare=home / "good")
    assert evaluation.compared == pair.paired


def test_tta_averages_mirrored_images(home: Path) -> None:
    plain, both = (evaluate(home / "good", home / "data", tta=tta) for tta in (False, True))
    assert plain.n == both.n
    assert [row.confidence for row in plain.rows] != [row.confidence for row in both.rows]


def test_runs_that_cannot_be_compared(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_colours(tmp_path / "data", {"train": 6, "val": 3})
    (tmp_path / "data" / "train" / "red").rename(tmp_path / "data" / "train" / "pink")
    (tmp_path / "data" / "val" / "red").rename(tmp_path / "data" / "val" / "pink")
    learn(tmp_path / "data", tmp_path / "pinks", "steps=2")
    out = ["--out", str(tmp_path / "page.html")]
    for words, match in (
        ([home / "good", tmp_path / "pinks"], "only one of them knows 'pink', 'red'"),
        ([home / "good"], "at least two runs"),
        ([home / "good", home / "data"], "is not a finished run"),
        ([home / "good", tmp_path / "nowhere"], "there is no run at"),
    ):
        assert exit_code(["compare", *map(str, words), *out]) == 2
        printed = capsys.readouterr()
        assert match in printed.err
        assert printed.out == ""
        assert not (tmp_path / "page.html").exists()


def test_runs_evaluated_on_other_images(home: Path, tmp_path: Path) -> None:
    """The page does not claim that one is better."""
    rows = (home / "elsewhere" / "predictions.csv").read_text().replace("/red", "/other red")
    (home / "elsewhere" / "predictions.csv").write_text(rows.replace("/blue", "/other blue").replace("/green", "/x"))
    (home / "elsewhere" / "SHA256SUMS").unlink()
    comparison = compare([home / "good", home / "elsewhere"], page=tmp_path / "page.html")
    assert comparison.pairs[0].paired is None
    assert not comparison.pairs[0].significant
    assert "evaluated on different images" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("predictions.csv", "split,path\nval,a\n"),
        ("predictions.csv", None),
        ("predictions.csv", "split,path,label,predicted,confidence,given,right,unknown\nval,a,b,c,nan,0,True,False\n"),
        ("predictions.csv", "split,path,label,predicted,confidence,given,right,unknown\nval,a,b,c,1,0,maybe,False\n"),
        ("account.json", "{}"),
        ("account.json", "[1]"),
        ("account.json", "{"),
        ("account.json", '{"facts": {}, "result": {}, "val": {}}'),
        ("folds.json", "{"),
        ("metrics.jsonl", "5\n"),
        ("metrics.jsonl", "{\n"),
        ("calibration.json", '{"temperature": -1}'),
        ("calibration.json", '{"temperature": 1e999}'),
    ],
)
def test_damaged_files_of_a_run(name: str, text: str | None, home: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for path in (home / "good").iterdir():
        if path.is_file():
            (run / path.name).write_bytes(path.read_bytes())
    if text is None:
        (run / name).unlink()
    else:
        (run / name).write_text(text)
    with pytest.raises(RunError):
        compare([run, home / "good"], page=tmp_path / "page.html")


def test_charts_of_odd_numbers() -> None:
    assert line_chart([Line("none", [])], x_label="step", y_label="loss") is None
    for points in ([(0.0, 1.0)], [(1.0, 0.5), (2.0, 0.5)], [(float(x), 1e-9 * x) for x in range(5000)], [(1.0, 1e9)]):
        chart = str(line_chart([Line("<b>", points, dots=len(points) < 9)], x_label="step", y_label="loss"))
        assert "<b>" not in chart
        assert "nan" not in chart
        assert chart.count(",") < 500
    assert "<rect" not in str(reliability_chart([], "Before"))


def test_the_matrix_shows_the_most_confused_of_many_classes() -> None:
    names = [f"{number:03d}" for number in range(300)]
    summary = {
        "classes": [(name, 1, 0.5, 0.5, 0.5) for name in names],
        "confused": [(names[number], names[number + 1], 300 - number) for number in range(299)],
        "map": None,
    }
    shown = confusion_table(summary, [])
    assert shown is not None
    assert len(shown["names"]) == 40
    assert "001" in shown["names"]
    assert "299" not in shown["names"]


def test_thumbnails() -> None:
    assert thumbnail(b"not an image", 96) == ""
    assert thumbnail(b"", 96) == ""
    assert thumbnail(pixels_of("red", 0, side=8), 96).startswith("data:image/jpeg")


def test_classes_that_the_model_does_not_know_are_named(home: Path, tmp_path: Path) -> None:
    write_colours(tmp_path / "data", {"test": 2})
    (tmp_path / "data" / "test" / "red").rename(tmp_path / "data" / "test" / "scarlet")
    with pytest.raises(DataError, match=r"the data has classes that .*good does not know") as caught:
        evaluate(home / "good", tmp_path / "data")
    assert "'scarlet'" in str(caught.value)
