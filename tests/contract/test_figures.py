"""Every file of `inspection/figure` draws a figure for a small model, with its numbers and a description."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.conftest import fill
from tests.contract.small_images import write_folder
from vitrail import create_model, figures, plug, save_weights
from vitrail.errors import DataError, InspectionError, UnknownNameError
from vitrail.inspection.figures import write_figures
from vitrail.inspection.sample import Sample, sample_evenly

FIGURES = plug.entries("vitrail.inspection.figure")
WITHOUT_IMAGES = ("filters", "positions")


@pytest.fixture(scope="module")
def model() -> Any:
    return fill(create_model("vit_mu_patch8_64", num_classes=4), 0.1).eval()


@pytest.fixture(scope="module")
def sample(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Sample:
    return sample_evenly(write_folder(tmp_path_factory.mktemp("images")), 8, model.preprocess)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_written_with_its_numbers(name: str, model: Any, sample: Sample, tmp_path: Path) -> None:
    entry = plug.load("vitrail.inspection.figure", name)
    assert entry.TITLE
    assert entry.DESCRIPTION.count(". ") >= 1
    assert entry.DESCRIPTION.endswith(".")
    files = write_figures(model, sample, tmp_path, names=[name])
    assert [path.name for path in files] == [f"{name}.png", f"{name}.svg", f"{name}.csv", "figures.html"]
    with Image.open(tmp_path / f"{name}.png") as image:
        pixels = np.asarray(image.convert("L"))
    assert pixels.std() > 5
    rows = list(csv.reader((tmp_path / f"{name}.csv").read_text().splitlines()))
    assert len(rows) > 1
    assert {len(row) for row in rows} == {len(rows[0])}
    assert entry.DESCRIPTION.split(".", maxsplit=1)[0] in (tmp_path / "figures.html").read_text()


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_has_the_same_bytes_each_time(name: str, model: Any, sample: Sample, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        write_figures(model, sample, tmp_path / folder, names=[name])
    for kind in ("png", "svg", "csv"):
        assert (tmp_path / "one" / f"{name}.{kind}").read_bytes() == (tmp_path / "two" / f"{name}.{kind}").read_bytes()


def test_without_images_only_figures_that_need_none_are_drawn(model: Any, tmp_path: Path) -> None:
    save_weights(model, tmp_path / "model.safetensors")
    files = figures("vit_mu_patch8_64", weights=tmp_path / "model.safetensors", out=tmp_path / "figures")
    assert {path.stem for path in files} == {*WITHOUT_IMAGES, "figures"}
    with pytest.raises(InspectionError, match="cannot be computed without images"):
        figures("vit_mu_patch8_64", weights=tmp_path / "model.safetensors", out=tmp_path / "more", names=["distance"])
    assert not (tmp_path / "more").exists()


def test_a_convolutional_model_gets_the_figures_that_apply(tmp_path: Path, sample: Sample) -> None:
    model = fill(create_model("resnetv2_50x1_bit", num_classes=4, image_size=64, layers=(1, 1, 1, 1)), 0.05).eval()
    own = Sample(sample.source.only(range(2)), model.preprocess)
    files = write_figures(model, own, tmp_path)
    assert {path.stem for path in files} == {"receptive", "faithfulness", "figures"}


def test_wrong_arguments(model: Any, tmp_path: Path) -> None:
    save_weights(model, tmp_path / "model.safetensors")
    options: dict[str, Any] = {"weights": tmp_path / "model.safetensors"}
    (tmp_path / "file").write_text("")
    with pytest.raises(InspectionError, match="is not a folder"):
        figures("vit_mu_patch8_64", **options, out=tmp_path / "file")
    with pytest.raises(UnknownNameError, match="filter"):
        figures("vit_mu_patch8_64", **options, out=tmp_path / "out", names=["filter"])
    with pytest.raises(DataError):
        figures("vit_mu_patch8_64", tmp_path / "nowhere", **options, out=tmp_path / "out")


def test_a_sample_is_spread_over_the_data(sample: Sample) -> None:
    assert len(sample) == 8
    assert {name.partition("/")[0] for name in sample.source.names[:3]} == set("abc"), "classes alternate"
    assert sum(len(images) for images in sample.batches(3)) == 3


def test_damaged_images_are_skipped(model: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = write_folder(tmp_path / "images", 12)
    for name in table.names[:3]:
        (tmp_path / "images" / name).write_bytes(b"not an image")
    sample = sample_evenly(table, 12, model.preprocess)
    assert len(sample) == 9
    assert caplog.text.count("Skipped: ") == 3
    write_figures(model, sample, tmp_path / "figures")
    assert (tmp_path / "figures" / "distance.csv").read_text().splitlines()[1].endswith(",9")
    assert "9 images" in (tmp_path / "figures" / "figures.html").read_text()
    for name in table.names:
        (tmp_path / "images" / name).write_bytes(b"not an image")
    with pytest.raises(DataError, match="no image could be read"):
        sample_evenly(table, 12, model.preprocess)


def test_without_a_classifier_the_other_figures_are_drawn(sample: Sample, tmp_path: Path) -> None:
    bare = fill(create_model("vit_mu_patch8_64", num_classes=0), 0.1).eval()
    files = write_figures(bare, sample, tmp_path)
    assert {path.stem for path in files} == {"filters", "positions", "distance", "receptive", "figures"}


def test_images_need_no_labels(model: Any, tmp_path: Path) -> None:
    save_weights(model, tmp_path / "model.safetensors")
    write_folder(tmp_path / "images", 9)
    flat = tmp_path / "images" / "a"
    for data in (flat, next(flat.glob("*.png"))):
        options: dict[str, Any] = {"weights": tmp_path / "model.safetensors", "out": tmp_path / "out"}
        figures("vit_mu_patch8_64", data, **options, names=["distance"])
        rows = (tmp_path / "out" / "distance.csv").read_text().splitlines()
        assert rows[1].endswith(",3" if data == flat else ",1")
