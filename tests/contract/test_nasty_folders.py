"""Odd folders, names and locations are read, reported as findings, or refused with one DataError."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tests.contract import layouts
from tests.contract.layouts import LAYOUTS, contents, expected, png, samples
from tests.contract.reading import READER, Child, Refuse, fingerprint, read
from vitrail.data.find import open_data
from vitrail.errors import DataError, printable

PNG = png(samples()[0].pixels)


@pytest.mark.parametrize(
    ("location", "match"),
    [
        ("", "no name"),
        ("pipe:cat x.tar", "read, not run"),
        ("x{3..1}.tar", "no shards"),
        ("x{0..99999999999999999999}.tar", "no shards"),
        ("x*.tar", "no shards"),
        ("no/such/folder", "nothing at"),
        ("a\x00b.csv", "nothing at"),
        pytest.param("x/" + "y" * 5000, "nothing at|cannot be read", id="too long"),
    ],
)
def test_bad_locations(
    location: str, match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuse: Refuse
) -> None:
    monkeypatch.chdir(tmp_path)
    refuse(location, match)


def test_folders_without_images(tmp_path: Path, refuse: Refuse) -> None:
    refuse(tmp_path, "no images in class folders")
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.txt").write_text("a")
    refuse(tmp_path, "no file with the suffix of an image")
    refuse(tmp_path / "cat" / "a.txt", "not data that Vitrail can read")


@pytest.mark.parametrize("name", ["set.tar", "set.zip", "set.csv", "set.npz", "set.parquet"])
def test_a_folder_named_like_a_file(name: str, tmp_path: Path) -> None:
    location = layouts.write_folder(tmp_path / name, samples())
    assert contents(open_data(location)) == expected(samples())


def test_odd_things_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, outside = tmp_path / "set", tmp_path / "outside"
    for name in ("set/cat/a.png", "set/cat/folder.jpg/b.png", "set/cat/.hidden.png", "set/.git/c.png", "outside/x.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(PNG)
    (root / "cat" / "note.odd").touch()
    (root / "cat" / "empty.jpg").mkdir()
    links = {"circle.png": "circle.png", "up": "..", "out.png": outside / "x.png", "gone.png": "nowhere"}
    for name, target in {**links, "../fox": outside}.items():
        (root / "cat" / name).symlink_to(target)
    os.mkfifo(root / "cat" / "pipe.jpg")
    monkeypatch.chdir(root / "cat")  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket.jpg")
        before = fingerprint(tmp_path)
        table = read(root)
        assert fingerprint(tmp_path) == before
    assert list(table.names) == ["cat/a.png", "cat/folder.jpg/b.png"]
    assert {finding.path: finding.kind for finding in table.findings} == {
        "cat/empty.jpg": "ignored",
        **{f"cat/{name}": "link" for name in links},
        "fox": "link",
        "cat/pipe.jpg": "special",
        "cat/socket.jpg": "special",
        "cat/note.odd": "ignored",
    }


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_without_read_permission(tmp_path: Path, refuse: Refuse) -> None:
    layouts.write_table(tmp_path, samples())
    images, table = tmp_path / "images", tmp_path / "set.csv"
    try:
        (images / "train" / "dog").chmod(0)
        assert [finding[:2] for finding in open_data(images).findings] == [("train/dog", "unreadable")]
        refuse(table, r"train/dog/0\.png cannot be read")
        for path in (images, table):
            path.chmod(0)
            refuse(path, path.name)
    finally:
        for path in (images, table, images / "train" / "dog"):
            path.chmod(0o700)


@pytest.mark.parametrize("name", ["😀", "two\nlines", "-rf", os.fsdecode(b"\xff\xfe"), "\x1b[31m", "a;b|c"])
def test_any_name_can_be_read_and_shown(name: str, tmp_path: Path, refuse: Refuse) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / f"{name}.png").write_bytes(PNG)
    assert read(tmp_path).classes == (name,)
    (tmp_path / name / f"{name}.png").write_bytes(b"broken")
    assert printable(name) in str(refuse(tmp_path, "not an image that Vitrail can read")).encode().decode()


@pytest.mark.parametrize("layout", ["folder", "zip", "csv", "parquet of paths", "saved", "npz", "shards of folders"])
@pytest.mark.parametrize("names", [("Cat", "cat", "dog"), ("cafe\u0301", "cafz", "caf\u00e9")])
def test_similar_class_names_stay_separate(names: tuple[str, ...], layout: str, tmp_path: Path) -> None:
    dataset = samples(names)
    source = open_data(LAYOUTS[layout].write(tmp_path, dataset))
    assert source.classes == names
    assert contents(source) == expected(dataset)


@pytest.mark.parametrize("layout", ["folder", "csv", "parquet of paths", "shards"])
def test_files_that_vanish_or_change(layout: str, tmp_path: Path) -> None:
    source = open_data(LAYOUTS[layout].write(tmp_path, samples()))
    path = next(tmp_path.rglob("train-000000.tar" if layout == "shards" else "train/cat/0.png"))
    path.unlink()
    with pytest.raises(DataError, match=path.name):
        READER.read(next(iter(source)))
    path.mkdir()
    with pytest.raises(DataError, match=path.name):
        READER.read(next(iter(source)))
    # By name: the total number of handles also falls when leftovers of an earlier test are collected.
    assert path not in [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]


@pytest.mark.parametrize(
    ("layout", "name", "location"),
    [
        ("shards", "set.tar", "set.tar"),
        ("shards", "classnames.txt", "train-000000.tar"),
        ("hub folder", "data/test-00000-of-00001.parquet", ""),
        ("saved", "saved/test/data-00000-of-00001.arrow", "saved"),
        ("saved", "saved/train/state.json", "saved"),
        ("saved", "saved/train/dataset_info.json", "saved"),
        ("csv", "images/train/cat/0.png", "set.csv"),
        ("idx.gz", "t10k-labels-idx1-ubyte.gz", ""),
        ("cifar10", "batches.meta.txt", ""),
    ],
)
def test_a_pipe_never_blocks(layout: str, name: str, location: str, tmp_path: Path, child: Child) -> None:
    LAYOUTS[layout].write(tmp_path, samples(**LAYOUTS[layout].options))
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    assert child.ask(tmp_path / location) in ("read", "refused")
