"""Shards as found in practice: masks next to images, dots in names, class folders and splits inside."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.contract.damage import encoded
from vitrail.data.find import open_data
from vitrail.errors import DataError


def write(path: Path, names: list[str]) -> Path:
    """A tar of single-colour images and labels; masks are black."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for number, name in enumerate(names):
            colour = (0, 0, 0) if "seg" in name else (200, number, 0)
            data = b"1" if name.endswith(".cls") else encoded(Image.new("RGB", (8, 8), colour), "PNG")
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


@pytest.mark.parametrize("order", [0, 1])
def test_a_mask_is_not_taken_for_the_image(order: int, tmp_path: Path) -> None:
    pair = ["0.png", "0.seg.png"]
    (item,) = open_data(write(tmp_path / "set.tar", ["0.cls", *(pair if order else pair[::-1])]))
    assert item.name.endswith("/0.png")
    assert np.asarray(Image.open(io.BytesIO(item.content())))[0, 0, 0] == 200


def test_dots_in_names_lose_nothing(tmp_path: Path) -> None:
    names = [f"{name}/Screenshot 12.{number}.png" for name in ("cat", "dog") for number in range(6)]
    stream = open_data(write(tmp_path / "set.tar", names))
    assert len(stream) == 12
    assert sorted(item.name.partition(".tar/")[2] for item in stream) == sorted(names)


def test_folders_in_a_tar_follow_the_rules_for_folders_on_disk(tmp_path: Path) -> None:
    stream = open_data(
        write(tmp_path / "deep.tar", ["around/cat/2020/1.png", "around/cat/2021/2.png", "around/dog/1.png"])
    )
    assert stream.classes == ("cat", "dog")
    assert [stream.classes[item.labels[0]] for item in stream] == ["cat", "cat", "dog"]
    write(tmp_path / "two" / "a.tar", ["train/cat/1.png", "train/dog/1.png"])
    write(tmp_path / "two" / "b.tar", ["val/cat/1.png"])
    stream = open_data(tmp_path / "two")
    assert (stream.split_names, stream.classes) == (("train", "val"), ("cat", "dog"))
    assert len(stream.split("val")) == 1
    write(tmp_path / "two" / "c.tar", ["train/cat/2.png", "val/cat/2.png"])
    with pytest.raises(DataError, match=r"c\.tar holds more than one split"):
        open_data(tmp_path / "two")


def test_an_image_outside_the_class_folders_is_reported(tmp_path: Path) -> None:
    stream = open_data(write(tmp_path / "set.tar", ["cat/1.png", "dog/1.png", "logo.png"]))
    assert len(stream) == len(list(stream)) == 2
    assert [finding.kind for finding in stream.findings] == ["ignored"]


def test_duplicate_class_names_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "set.tar", ["0.png", "0.cls"])
    (tmp_path / "classnames.txt").write_text("crane\ndog\ncrane\n")
    with pytest.raises(DataError, match=r"two classes with the same name(.|\n)*crane"):
        open_data(tmp_path / "set.tar")


def test_a_folder_called_digits_is_that_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "digits" / "one").mkdir(parents=True)
    (tmp_path / "digits" / "one" / "1.png").write_bytes(encoded(Image.new("RGB", (8, 8)), "PNG"))
    monkeypatch.chdir(tmp_path)
    assert open_data("digits").classes == ("one",)
