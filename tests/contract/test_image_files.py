"""Images from whatever a user names: files, folders, patterns, zips, a pipe; read only on demand."""

from __future__ import annotations

import gc
import io
import os
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.small_images import encoded, write_folder
from vitrail.data.image_files import as_table, find_images
from vitrail.data.name_column import NameColumn
from vitrail.data.table import Table
from vitrail.data.unlabelled import open_unlabelled
from vitrail.errors import DataError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Nine images in three folders, with a text and a hidden file among them, and a zip of two."""
    write_folder(tmp_path / "folder", 9)
    (tmp_path / "folder" / "a" / "notes.txt").write_text("none")
    (tmp_path / "folder" / "a" / ".hidden.png").write_bytes(encoded(0))
    with zipfile.ZipFile(tmp_path / "some.zip", "w") as archive:
        for number in range(2):
            archive.writestr(f"inner/{number}.png", encoded(number))
        archive.writestr("../outside.png", encoded(2))
        archive.writestr("inner/readme.md", "none")
    return tmp_path


def found(*words: object, pipe: bytes | None = None) -> dict[str, bytes]:
    stream = None if pipe is None else io.BufferedReader(io.BytesIO(pipe))
    return {each.name: each.content() for each in find_images(map(str, words), pipe=stream)}


def test_folders_patterns_zips_and_files(root: Path) -> None:
    folder = root / "folder"
    assert len(found(folder)) == 9
    assert list(found(folder)) == sorted(str(path) for path in folder.glob("*/[0-9]*"))
    assert set(found(folder / "*" / "*.png")) == {str(path) for path in folder.glob("*/0*.png")}
    assert set(found(folder / "a*")) == {str(path) for path in folder.glob("a/0*")}
    assert found(root / "some.zip") == {f"{root}/some.zip/inner/{number}.png": encoded(number) for number in range(2)}
    assert found(folder / "a" / "notes.txt") == {str(folder / "a" / "notes.txt"): b"none"}, "a named file is tried"
    assert len(found(folder, root / "some.zip", folder / "a" / "000.png")) == 11


def test_a_name_that_looks_like_a_pattern_is_a_name(root: Path) -> None:
    (root / "a[1].png").write_bytes(b"one")
    assert found(root / "a[1].png") == {str(root / "a[1].png"): b"one"}


def test_a_pipe_has_names_or_an_image(root: Path) -> None:
    names = sorted(str(path) for path in (root / "folder").glob("*/0*"))
    assert list(found("-", pipe="\n".join([*names, ""]).encode())) == names
    assert found("-", pipe=encoded(1)) == {"standard input": encoded(1)}
    assert found("-", pipe=b"") == {}


def test_a_missing_file_is_reported_when_it_is_read(root: Path) -> None:
    (missing,) = find_images([str(root / "nowhere.png")])
    with pytest.raises(DataError, match=r"nowhere\.png cannot be read"):
        missing.content()
    (root / "empty").mkdir()
    (root / "bad.zip").write_bytes(b"PK")
    for word, message in (
        ("empty", "no images in"),
        ("*.gif", "no file matches"),
        ("bad.zip", "not a complete zip file"),
    ):
        with pytest.raises(DataError, match=message):
            list(find_images([str(root / word)]))


def test_images_without_labels_are_a_table(root: Path) -> None:
    images = list(find_images([str(root / "folder"), str(root / "some.zip")]))
    table = as_table(images, "here")
    assert len(table) == 11
    assert table.content(10) == encoded(1)


@given(names=st.lists(st.text(max_size=12) | st.binary(max_size=12).map(os.fsdecode), max_size=8))
def test_a_column_of_names_is_the_list_of_names(names: list[str]) -> None:
    """Also of names that are empty or not UTF-8."""
    column = NameColumn(names)
    assert len(column) == len(names)
    assert list(column) == names
    assert column == names
    assert column == NameColumn(iter(names))
    assert column != [*names, "one more"]
    for index in range(-len(names), len(names)):
        assert column[index] == names[index]
    assert column[1:-1] == names[1:-1]
    assert column[::-2] == names[::-2]
    for index in (len(names), -len(names) - 1):
        with pytest.raises(IndexError):
            column[index]


def test_many_files_without_labels_take_little_memory(tmp_path: Path) -> None:
    """Little more than their names; a string and a function for each file took 397 bytes."""
    num, folder = 3000, tmp_path / "flat"
    folder.mkdir()
    for number in range(num):
        (folder / f"{number:06d}.png").write_bytes(b"")
    (folder / "000002.png").write_bytes(encoded(2))
    open_unlabelled(folder)  # imports what it needs
    gc.collect()
    tracemalloc.start()
    try:
        table = open_unlabelled(folder)
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
        del table
        gc.collect()
        freed, _ = tracemalloc.get_traced_memory()  # the rest belongs to others
    finally:
        tracemalloc.stop()
    assert 0 < (kept - freed) / num < 60
    table = open_unlabelled(folder)
    assert len(table) == num
    assert isinstance(table, Table)
    assert table.content(2) == encoded(2)
    assert table.only([2, 0]).names == ["000002.png", "000000.png"]
