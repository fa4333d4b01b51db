"""`vitrail predict`: one row per image, in order and in constant memory; a broken image is an error row."""

from __future__ import annotations

import csv
import io
import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.conftest import fill
from tests.contract.colours import COLOURS, TINY, exit_code, learn, pixels_of, write_colours
from tests.contract.reading import fingerprint
from vitrail import create_model, load, predict, save_weights, train
from vitrail.data.image_files import ImageFile
from vitrail.errors import DataError, RunError, WeightsError
from vitrail.run.predictor import Predictor
from vitrail.verbs import predict as module


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, a folder of 40 images, and a zip of six."""
    folder = tmp_path_factory.mktemp("predict")
    write_colours(folder / "data", {"train": 30, "val": 20, "test": 4})
    learn(folder / "data", folder / "run")
    (folder / "new").mkdir()
    with zipfile.ZipFile(folder / "new.zip", "w") as archive:
        for number in range(40):
            name = list(COLOURS)[number % 3]
            Image.fromarray(pixels_of(name, 500 + number, side=30 + number)).save(folder / "new" / f"{number:02d}.png")
            if number < 6:
                archive.write(folder / "new" / f"{number:02d}.png")
    return folder


def test_rows_match_the_model(home: Path) -> None:
    model = load(home / "run")
    rows = list(predict(home / "run", [home / "new"], batch_size=7, top=2))
    assert [Path(row.path).name for row in rows] == [f"{number:02d}.png" for number in range(40)]
    for number, row in enumerate(rows):
        assert row.prediction is not None
        assert row.prediction.label == list(COLOURS)[number % 3]
        pixels = model.preprocess.decode(Path(row.path).read_bytes())
        with torch.inference_mode():
            logits = model(model.preprocess.normalise(model.preprocess.resize_and_crop(pixels)[None]))
        probabilities = (logits[0] / model.calibration.temperature).softmax(dim=0)
        assert row.prediction.confidence == pytest.approx(probabilities.max().item(), abs=1e-5)
        assert [label for label, _ in row.prediction.top] == [
            model.labels[place] for place in probabilities.topk(2).indices
        ]
    assert model.calibration.temperature != 1.0


def test_every_way_to_name_images(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, new = home / "run", home / "new"
    labels = [row.prediction.label for row in predict(run, [new]) if row.prediction]
    for words, num in ((["new/*.png"], 40), ([home / "new.zip"], 6), ([new / "00.png", new / "01.png"], 2)):
        monkeypatch.chdir(home)
        assert [row.prediction.label for row in predict(run, words) if row.prediction] == labels[:num]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{new}/00.png\n{new}/01.png\n".encode())))
    assert [row.prediction.label for row in predict(run, ["-"]) if row.prediction] == labels[:2]


def test_every_third_file_is_broken(home: Path, tmp_path: Path) -> None:
    for number in range(30):
        content = (home / "new" / f"{number:02d}.png").read_bytes()
        broken = (b"", content[: len(content) // 2], b"not an image")[number % 9 // 3]
        (tmp_path / f"{number:02d}.png").write_bytes(content if number % 3 else broken)
    before = fingerprint(tmp_path)
    rows = list(predict(home / "run", [tmp_path], batch_size=4))
    assert [row.error is not None for row in rows] == [number % 3 == 0 for number in range(30)]
    assert all((row.prediction is None) == (row.error is not None) for row in rows)
    assert fingerprint(tmp_path) == before


def test_few_images_are_in_memory_at_a_time(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = (home / "new" / "00.png").read_bytes()
    num_found = 0

    def endless(_: object, *, modality: str) -> Iterator[ImageFile]:
        nonlocal num_found
        while True:
            num_found += 1
            yield ImageFile(str(num_found), lambda: content)

    monkeypatch.setattr(module, "find_images", endless)
    rows = predict(home / "run", ["images"], batch_size=5)
    for number in range(200):
        next(rows)
        assert num_found <= number + 1 + 5 * (module.PREFETCH_BATCHES + 1)
    rows.close()


def test_copies_are_sorted_and_originals_stay(home: Path, tmp_path: Path) -> None:
    before, out = fingerprint(home / "new"), tmp_path / "sorted"
    rows = list(predict(home / "run", [home / "new"], copy_to=out))
    copies = {path.name: path for path in out.rglob("*.png")}
    for row in rows:
        assert row.prediction is not None
        copy = copies[Path(row.path).name]
        assert copy.parent.name == ("unknown" if row.prediction.unknown else row.prediction.label)
        assert copy.read_bytes() == Path(row.path).read_bytes()
    assert fingerprint(home / "new") == before
    list(predict(home / "run", [home / "new"], copy_to=out))
    assert len(list(out.rglob("*.png"))) == 40, "the same images are not copied twice"
    other = tmp_path / "other" / "00.png"
    other.parent.mkdir()
    other.write_bytes((home / "new" / "03.png").read_bytes())
    list(predict(home / "run", [other], copy_to=out))
    assert len(list(out.rglob("00*.png"))) == 2, "another image of the same name gets its own copy"
    with pytest.raises(RunError, match="among the images"):
        predict(home / "run", [home / "new"], copy_to=home / "new" / "sorted")
    with pytest.raises(RunError, match="is not a folder"):
        predict(home / "run", [home / "new"], copy_to=other)


@pytest.mark.parametrize("label", ["../../out", "..", "a/b", ".", "c\0d"])
def test_a_label_never_leads_out_of_the_folder(label: str, tmp_path: Path) -> None:
    sorter = module.CopySorter(tmp_path / "in" / "sorted", [])
    sorter.copy(ImageFile("zip/../../x.png", lambda: b"content"), label)
    (copy,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert copy.parent.parent == tmp_path / "in" / "sorted"
    assert copy.name == "x.png"


def test_an_image_that_fits_no_class_is_unknown(home: Path) -> None:
    known = [row.prediction.unknown for row in predict(home / "run", [home / "data" / "test"]) if row.prediction]
    assert sum(known) <= 3
    predictions = Predictor(load(home / "run")).interpret(torch.tensor([[0.0, 0.0, 0.0], [torch.inf, 0.0, 0.0]]))
    assert predictions[0] is not None
    assert predictions[0].unknown
    assert predictions[1] is None, "no prediction from outputs that are not finite"


def test_labels_above_their_threshold_are_assigned(home: Path) -> None:
    model = load(home / "run")
    model.calibration = model.calibration.override(
        {"multi_label": True, "thresholds": [0.2, 0.9, 0.5], "temperature": 1.0}
    )
    predictions = Predictor(model).interpret(torch.tensor([[-1.0, 2.0, 3.0], [-5.0, -5.0, -4.0]]))
    assert predictions[0] is not None
    assert predictions[1] is not None
    assert predictions[0].labels == ("blue", "red")
    assert predictions[1].labels == ()
    assert predictions[1].label == "red", "the most likely, where none is assigned"


def test_output_formats(home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["predict", str(home / "run"), str(home / "new" / "00.png"), str(tmp_path / "gone.png")]
    assert exit_code([*words, "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole[0].keys() == {"path", "label", "labels", "confidence", "unknown", "top"}
    assert whole[1].keys() == {"path", "error"}
    assert exit_code([*words, "--format", "jsonl"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == whole
    assert exit_code([*words, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["label"] for row in rows] == ["blue", ""]
    assert rows[1]["error"]
    assert exit_code(words) == 0
    printed = capsys.readouterr()
    assert "blue" in printed.out
    assert "2 images, 0 unknown, 1 unreadable" in printed.err


@pytest.mark.parametrize("form", ["table", "csv", "jsonl"])
def test_no_images(home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, form: str) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("not an image")
    for place in (tmp_path / "texts", tmp_path / "none"):
        place.mkdir(exist_ok=True)
        assert exit_code(["predict", str(home / "run"), str(place), "--format", form]) == 2
        printed = capsys.readouterr()
        assert printed.out == "", "nothing half written"
        assert "there are no images in" in printed.err
    assert exit_code(["predict", str(home / "run"), str(tmp_path / "gone.png"), "--format", form]) == 2


def test_rows_before_an_error_are_printed(home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["predict", str(home / "run"), str(home / "new"), str(tmp_path), "--json"]
    assert exit_code(words) == 2
    printed = capsys.readouterr()
    assert len(json.loads(printed.out)) == 40
    assert "there are no images in" in printed.err


def test_names_that_no_file_can_have(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = b"a\0b.png\n" + f"{home}/new/00.png\n".encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(names)))
    rows = list(predict(home / "run", ["-"]))
    assert [row.error is None for row in rows] == [False, True]


def test_a_head_of_zeros_predicts_nothing(tmp_path: Path, home: Path) -> None:
    save_weights(create_model(TINY, num_classes=4), tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match="no classifier"):
        predict(TINY, [home / "new" / "00.png"], weights=tmp_path / "model.safetensors")


def test_a_run_that_learned_nothing_predicts_chance(tmp_path: Path, home: Path) -> None:
    """The first step has a learning rate of zero."""
    train("digits", recipe="scratch", model="vit_mu_patch4_8", run=tmp_path / "run", settings=["steps=1"], report=False)
    prediction = next(iter(predict(tmp_path / "run", [home / "new" / "00.png"]))).prediction
    assert prediction is not None
    assert prediction.confidence == pytest.approx(0.1)


def test_weights_without_a_run_never_say_unknown(tmp_path: Path, home: Path) -> None:
    save_weights(fill(create_model(TINY, num_classes=4), 0.2), tmp_path / "model.safetensors")
    rows = list(predict(TINY, [home / "new" / "00.png"], weights=tmp_path / "model.safetensors"))
    assert rows[0].prediction is not None
    assert rows[0].prediction.label.startswith("class ")
    assert not rows[0].prediction.unknown


def test_a_pattern_without_matches_is_an_error(home: Path) -> None:
    with pytest.raises(DataError, match="no file matches"):
        list(predict(home / "run", [os.fspath(home / "*.gif")]))
