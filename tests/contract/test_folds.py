"""Folds: every image is evaluated once, by a model trained without it; and the labels that are probably wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.contract.colours import exit_code, learn, write_colours
from tests.contract.small_images import table_of, write_shards
from vitrail.data.check import scan_source
from vitrail.data.find import open_data
from vitrail.data.folds import fold_numbers, fold_tables, foldable
from vitrail.data.table import Table
from vitrail.errors import DataError, RunError
from vitrail.run.predictions import PredictionRow, read_predictions, suspects


def test_classes_are_spread_evenly() -> None:
    labels = [0] * 50 + [1] * 13 + [2] * 7
    numbers = fold_numbers(table_of(labels), 5, seed=0, scans=None)
    for label in range(3):
        counts = np.bincount(numbers[np.array(labels) == label], minlength=5)
        assert counts.max() - counts.min() <= 1
    assert np.bincount(numbers).max() - np.bincount(numbers).min() <= 1
    again, other = (fold_numbers(table_of(labels), 5, seed=seed, scans=None) for seed in (0, 1))
    assert (again == numbers).all()
    assert (other != numbers).any()


def test_duplicates_stay_together(tmp_path: Path) -> None:
    write_colours(tmp_path, {"train": 12})
    for number in range(0, 12, 3):
        path = tmp_path / "train" / "red" / f"red{number:03d}.png"
        for times in range(2):
            shutil.copy(path, path.with_stem(f"{path.stem} again {times}"))
    table = open_data(tmp_path)
    assert isinstance(table, Table)
    numbers = fold_numbers(table, 3, seed=0, scans=scan_source(table))
    for number in range(0, 12, 3):
        places = [row for row, name in enumerate(table.names) if Path(name).name.startswith(f"red{number:03d}")]
        assert len(places) == 3
        assert len(set(numbers[places].tolist())) == 1
    with pytest.raises(DataError, match="as many different images as there are folds"):
        fold_numbers(table, 13, seed=0, scans=scan_source(table))


def test_each_fold_is_the_test_split_once() -> None:
    table = table_of([0, 1] * 6)
    numbers = fold_numbers(table, 3, seed=0, scans=None)
    for number, part in enumerate(fold_tables(table, numbers, 3)):
        held = part.split("test")
        assert sorted(held.names) == sorted(table.names[row] for row in np.flatnonzero(numbers == number))
        assert not set(held.names) & set(part.split("train").names)


@pytest.mark.parametrize(
    ("folds", "match"),
    [(1, "at least two folds"), (0, "at least two folds"), (21, "as many images as there are folds")],
)
def test_impossible_numbers_of_folds(
    folds: int, match: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_colours(tmp_path / "data", {"train": 20, "test": 3})
    words = ["train", str(tmp_path / "data"), "--run", str(tmp_path / "run"), "--folds", str(folds)]
    assert exit_code(words) == 2
    message = capsys.readouterr().err
    assert match in message
    assert len(message.splitlines()) == 3
    assert not (tmp_path / "run").exists()


def test_shards_have_no_folds(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="shards cannot be divided"):
        foldable(write_shards(tmp_path), 3)


@pytest.fixture(scope="module")
def folded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A run with three folds on colours, two images of each class with a wrong label, and the names of these."""
    folder = tmp_path_factory.mktemp("folded")
    wrong = write_colours(folder / "data", {"train": 24, "test": 6}, swapped=2)
    learn(folder / "data", folder / "run", folds=3)
    return folder, wrong


def test_each_image_is_evaluated_once(folded: tuple[Path, list[str]]) -> None:
    run = folded[0] / "run"
    rows = read_predictions(run / "out_of_fold.csv")
    names = [name for name in open_data(folded[0] / "data").names if name.startswith("train/")]
    assert sorted(row.path for row in rows) == sorted(names)
    found = json.loads((run / "folds.json").read_text())
    assert found["n"] == len(names) == 72
    assert found["mean"] == pytest.approx(np.mean(found["scores"]))
    assert found["spread"] == pytest.approx(np.std(found["scores"], ddof=1))
    for number in (1, 2, 3):
        own = {row.path for row in rows if row.split == f"fold {number}"}
        learned = read_predictions(run / "folds" / str(number) / "predictions.csv")
        assert own == {row.path for row in learned if row.split == "test"}
        assert not own & {row.path for row in learned if row.split == "val"}
        assert sum(row.right for row in rows if row.path in own) / len(own) == pytest.approx(
            found["scores"][number - 1]
        )


def test_wrong_labels_are_found(folded: tuple[Path, list[str]]) -> None:
    folder, wrong = folded
    found = suspects(read_predictions(folder / "run" / "out_of_fold.csv"))
    assert {row.path for row in found[: len(wrong)]} == set(wrong)
    page = (folder / "run" / "report.html").read_text()
    assert all(Path(path).name in page for path in wrong)
    assert "3-fold cross-validation" in page


def test_an_interrupted_run_resumes(folded: tuple[Path, list[str]]) -> None:
    folder, _ = folded
    table = folder / "run" / "out_of_fold.csv"
    before, whole = table.read_bytes(), folder / "run" / "folds" / "3" / "result.json"
    whole.unlink()
    table.unlink()
    parts = folder / "run" / "folds" / "parts.json"
    content = json.loads(parts.read_text())
    result = learn(folder / "data", folder / "run", folds=3)
    assert table.read_bytes() == before
    assert result.folds is not None
    assert result.folds["k"] == 3
    with pytest.raises(RunError, match="holds other folds"):
        learn(folder / "data", folder / "run", folds=4)
    content["parts"] = "nonsense"
    text = parts.read_text()
    parts.write_text(json.dumps(content))
    with pytest.raises(RunError, match="is not the file that was written"):
        learn(folder / "data", folder / "run", folds=3)
    parts.write_text(text)


def test_the_clearest_suspects_come_first() -> None:
    def row(path: str, confidence: float, given: float, *, right: bool = False) -> PredictionRow:
        return PredictionRow("val", path, "a", "a" if right else "b", confidence, given, right, False)

    rows = [
        row("unsure", 0.5, 0.1),
        row("many", 0.3, 1e-4),
        row("clear", 0.9, 1e-4),
        row("right", 0.9, 0.9, right=True),
        row("some", 0.8, 0.02),
    ]
    assert [each.path for each in suspects(rows)] == ["clear", "some"]
