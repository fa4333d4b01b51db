"""Damaged, malicious or odd data is read, reported as findings, or refused with one DataError."""

from __future__ import annotations

import io
import json
import os
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib import format as npy
from pyarrow import parquet

from tests.contract import layouts
from tests.contract.layouts import FILES, LAYOUTS, png, samples, write_tar
from tests.contract.reading import Child, Refuse, fingerprint, read
from vitrail.data.decode import MAX_BYTES

PNG = png(samples()[0].pixels)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        pytest.param(b"path\na.png\n", r"no column for the labels(.|\n)*Got the columns path", id="no labels"),
        pytest.param(b"label\ncat\n", "no column for the images", id="no images"),
        pytest.param(b"path,label\na.png,cat\na.png, \n", r"row without a label(.|\n)*row 2", id="an empty label"),
        pytest.param(b"path,label,label\na.png,cat,dog\n", "two columns with the same name", id="a column twice"),
        pytest.param(b"path,label\na.png,cat\na.png\n", "Expected 2 columns, got 1", id="a short row"),
        pytest.param(b"", "Empty CSV file", id="nothing"),
        pytest.param(b"path,label\n", "has no rows", id="no rows"),
        pytest.param(bytes(range(256)) * 20, r"set\.csv", id="bytes"),
        pytest.param(b"path,l\xe4bel\na.png,cat\n", r"set\.csv", id="a header in Latin-1"),
        pytest.param(b"path,label\na.png,\xc4pfel\n", "not a readable table", id="a label in Latin-1"),
        pytest.param("path,label\na.png,cat\n".encode("utf-16"), r"set\.csv", id="UTF-16"),
        pytest.param(b"path,label,split\na.png,cat,sometimes\n", "has an unknown split", id="unknown split"),
        pytest.param(b"path,label\na.png,cat\nb.png,cat\n", r"b\.png does not exist", id="a file that is not there"),
        pytest.param(b"path,label\na\x00.png,cat\n", r"a\\x00\.png", id="a null in a path"),
        pytest.param(b"path,label\n" + b"a" * 300 + b".png,cat\n", "cannot be read", id="a long path"),
        pytest.param(b"path,label\n,cat\n", r"row without a path(.|\n)*row 1", id="no path"),
        pytest.param(b"path,label\n.,cat\n", "not a regular file", id="a folder"),
    ],
)
def test_bad_csv(content: bytes, match: str, tmp_path: Path, refuse: Refuse) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    (tmp_path / "set.csv").write_bytes(content)
    refuse(tmp_path / "set.csv", match)


@pytest.mark.parametrize("damage", ["empty", "cut", "garbage"])
@pytest.mark.parametrize("layout", [layout for layout in FILES if layout != "csv"])
def test_damaged_files_are_named(layout: str, damage: str, tmp_path: Path, refuse: Refuse) -> None:
    location = LAYOUTS[layout].write(tmp_path, samples(**LAYOUTS[layout].options))
    path = tmp_path / FILES[layout]
    size = path.stat().st_size
    garbage = np.random.default_rng(0).bytes(size + 1)
    path.write_bytes({"empty": b"", "cut": path.read_bytes()[: size // 3 + 1], "garbage": garbage}[damage])
    assert path.name in refuse(location, "Got ").wrong


def save_table(root: Path, **columns: Any) -> Path:
    (root / "a.png").write_bytes(PNG)
    parquet.write_table(pa.table(columns), root / "set.parquet")
    return root / "set.parquet"


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param({"path": ["a.png"], "label": [{"deep": 1}]}, id="a struct label"),
        pytest.param({"path": ["a.png"], "label": [b"\xff"]}, id="a bytes label"),
        pytest.param({"path": ["a.png"], "label": pa.array([None], pa.string())}, id="no label"),
        pytest.param({"path": [["a.png"]], "label": ["cat"]}, id="a list of paths"),
        pytest.param({"path": [None, "a.png"], "label": ["cat", "cat"]}, id="no path"),
        pytest.param({"image": [b""], "label": ["cat"]}, id="an empty image"),
        pytest.param({"image": pa.array([None], pa.binary()), "label": ["cat"]}, id="no image"),
        pytest.param({"image": [{"bytes": None, "path": None}], "label": ["cat"]}, id="no bytes"),
        pytest.param({"image": [{"bytes": None, "path": "/dev/zero"}], "label": ["cat"]}, id="a device"),
    ],
)
def test_bad_columns(columns: dict[str, Any], tmp_path: Path, refuse: Refuse) -> None:
    refuse(save_table(tmp_path, **columns), "Got ")


def test_parquet_files_with_different_columns(tmp_path: Path, refuse: Refuse) -> None:
    save_table(tmp_path, image=[PNG], label=["cat"]).rename(tmp_path / "train-0.parquet")
    save_table(tmp_path, img=[PNG], label=["cat"]).rename(tmp_path / "val-0.parquet")
    refuse(tmp_path, r"val-0\.parquet")


def swap(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    changed = data.replace(old, new)
    if path.suffix == ".parquet":  # it ends with the length of its footer
        size = int.from_bytes(data[-8:-4], "little") + len(changed) - len(data)
        changed = changed[:-8] + size.to_bytes(4, "little") + changed[-4:]
    path.write_bytes(changed)


FOUR, LESS, MANY = (
    b"\x16\x08\x19",
    b"\x16\x07\x19",
    b"\x16\x80\xc0\xa8\xca\x9a\x3a\x19",
)  # row counts in a Parquet footer


@pytest.mark.parametrize(
    ("layout", "names", "old", "new"),
    [
        pytest.param("hub folder", "data/*", b"label", b"l\xffbel", id="not UTF-8"),
        pytest.param("hub folder", "data/test*", FOUR, b"\x16\x0a\x19", id="5 rows instead of 4"),
        pytest.param("hub folder", "data/test*", FOUR, LESS, id="-4 rows"),
        pytest.param("hub folder", "data/test*", FOUR, MANY, id="10^12 rows"),
        pytest.param("saved", "saved/*/*.arrow", b"path", b"p\xffth", id="saved, not UTF-8"),
        pytest.param("saved", "saved/*/*.arrow", b"bytes", b"bites", id="saved, without bytes"),
    ],
)
def test_inconsistent_tables(layout: str, names: str, old: bytes, new: bytes, tmp_path: Path, child: Child) -> None:
    location = LAYOUTS[layout].write(tmp_path, samples())
    for path in tmp_path.glob(names):
        swap(path, old, new)
    assert child.ask(location) == "refused"


def test_a_saved_dataset_with_offsets_out_of_bounds(tmp_path: Path, child: Child) -> None:
    location = LAYOUTS["saved"].write(tmp_path, samples())
    sizes = [len(png(each.pixels)) for each in samples() if each.split == "test"]
    offsets = np.cumsum([0, *sizes]).astype("<i4")
    broken = offsets.copy()
    broken[1] = 2**31 - 1
    swap(tmp_path / "saved" / "test" / "data-00000-of-00001.arrow", offsets.tobytes(), broken.tobytes())
    assert child.ask(location) == "refused"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train/state.json", {"_data_files": [{"filename": "../../../../../../etc/passwd"}]}),
        ("train/state.json", {"_data_files": [{"filename": "/etc/passwd"}]}),
        ("train/state.json", {"_data_files": [{"filename": "gone.arrow"}]}),
        ("train/state.json", {"_data_files": [{"filename": "a\x00b"}]}),
        ("train/state.json", {"_data_files": [{"filename": 3}, None]}),
        ("train/state.json", []),
        ("train/dataset_info.json", {"features": {"label": {"names": ["one"], "_type": "ClassLabel"}}}),
        ("dataset_dict.json", {"splits": ["../saved/train"]}),
        ("dataset_dict.json", {"splits": [".."]}),
        ("dataset_dict.json", {"splits": "train"}),
    ],
)
def test_a_saved_dataset_cannot_point_outside(name: str, content: Any, tmp_path: Path, refuse: Refuse) -> None:
    location = layouts.write_saved(tmp_path, samples())
    layouts.build_dataset(samples(), layouts.NAMES).save_to_disk(tmp_path)  # what '..' would point to
    (tmp_path / "saved" / name).write_text(json.dumps(content))
    refuse(location, "Got ")


def test_deeply_nested_json(tmp_path: Path, refuse: Refuse) -> None:
    (tmp_path / "state.json").write_text("[" * 100_000)
    refuse(tmp_path, r"state\.json cannot be read")


def npz(root: Path, **arrays: Any) -> Path:
    np.savez(root / "set.npz", **arrays)
    return root / "set.npz"


def oversized_npz(root: Path) -> Path:
    header = io.BytesIO()
    npy.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (10**6, 1000, 1000)})
    with zipfile.ZipFile(root / "set.npz", "w") as archive:
        archive.writestr("x_train.npy", header.getvalue())
    return root / "set.npz"


def idx(root: Path, *shape: int) -> Path:
    for name, sides in (("images-idx3", shape), ("labels-idx1", shape[:1])):
        header = bytes((0, 0, 8, len(sides))) + np.array(sides, dtype=">u4").tobytes()
        (root / f"train-{name}-ubyte").write_bytes(header + bytes(min(2, *sides)))
    return root


def cut(root: Path, size: int) -> Path:
    os.truncate(root / "train-images-idx3-ubyte", size)
    return root


X, Y = np.zeros((3, 8, 6), np.uint8), np.array([0, 1, 2])


@pytest.mark.parametrize(
    ("make", "match"),
    [
        pytest.param(
            lambda root: npz(root, x_train=np.array([{}] * 3), y_train=Y), "objects, which could run code", id="objects"
        ),
        pytest.param(oversized_npz, "too large to unpack", id="a huge header"),
        pytest.param(lambda root: npz(root, x_train=X, y_train=Y[:2]), "labels that do not match", id="too few labels"),
        pytest.param(lambda root: npz(root, x_train=X, y_train=Y + 0.5), "labels that do not match", id="float labels"),
        pytest.param(
            lambda root: npz(root, x_train=X + 0.5, y_train=Y), "images of the wrong type or shape", id="float images"
        ),
        pytest.param(
            lambda root: npz(root, x_train=X, y_train=Y, names=np.array(["a", "b"])),
            "label without a class name",
            id="too few names",
        ),
        pytest.param(
            lambda root: npz(root, x_train=X, y_train=Y, names=np.array(3)), "not an intact npz", id="numeric names"
        ),
        pytest.param(
            lambda root: npz(root, pictures=X), r"no arrays named like images(.|\n)*pictures", id="other keys"
        ),
        pytest.param(lambda root: npz(root, x_train=X[:0], y_train=Y[:0]), "no images", id="empty"),
        pytest.param(lambda root: npz(root, x_train=X[:, :0], y_train=Y), "Got ", id="no rows"),
        pytest.param(lambda root: npz(root, x_train=X[:, :, :0], y_train=Y), "Got ", id="no columns"),
        pytest.param(lambda root: idx(root, 2, 8, 0), "Got ", id="idx without columns"),
        pytest.param(lambda root: idx(root, 2**31, 8, 6), "too large", id="idx of 100 GB"),
        pytest.param(lambda root: idx(root, 2**20, 64, 48), "not the|too large", id="idx of 3 GB"),
        pytest.param(lambda root: idx(root, 2, 8), "not an idx file", id="idx of 2 dimensions"),
        pytest.param(lambda root: cut(idx(root, 2, 8, 6), 14), "not an idx file", id="idx cut in its header"),
    ],
)
def test_arrays_are_checked_before_allocation(make, match: str, tmp_path: Path, refuse: Refuse) -> None:
    location = make(tmp_path)
    tracemalloc.start()
    try:
        refuse(location, match)
        assert tracemalloc.get_traced_memory()[1] < 2**26
    finally:
        tracemalloc.stop()


def zip_of(root: Path, *members: tuple[str, bytes]) -> Path:
    with zipfile.ZipFile(root / "set.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return root / "set.zip"


def test_names_in_a_zip_cannot_escape(tmp_path: Path) -> None:
    unsafe = ["../../x.jpg", "/etc/x.jpg", "cat/../../x.jpg", "cat\\..\\x.jpg", "C:/x.jpg", "cat//x.jpg"]
    odd = ["cat/note.odd", "cat/.hidden.png", "__MACOSX/cat/._a.png"]
    with pytest.warns(UserWarning, match="Duplicate name"):
        location = zip_of(tmp_path, *((name, PNG) for name in ("cat/a.png", *unsafe, *odd, "cat/a.png")))
    before = fingerprint(tmp_path.parent)
    table = read(location)
    assert list(table.names) == ["cat/a.png"]
    assert sorted((path, kind) for path, kind, *_ in table.findings) == sorted(
        [*((name, "unsafe") for name in (*unsafe, "cat/a.png")), ("cat/note.odd", "ignored")]
    )
    assert fingerprint(tmp_path.parent) == before


@pytest.mark.parametrize(
    ("offset", "value", "match"),
    [
        (8, b"\x01\x00", "encrypted"),
        (10, b"\x63\x00", "damaged in the zip"),  # an unknown compression method
        (16, b"\x00\x00\x00\x00", "damaged in the zip"),  # a wrong checksum
        (24, b"\x00\x00\x00\x20", "too large to decode"),  # half a gigabyte unpacked
    ],
)
def test_headers_in_a_zip(offset: int, value: bytes, match: str, tmp_path: Path, refuse: Refuse) -> None:
    location = zip_of(tmp_path, ("cat/a.png", PNG))
    data = bytearray(location.read_bytes())
    start = data.index(b"PK\x01\x02") + offset
    data[start : start + len(value)] = value
    location.write_bytes(data)
    refuse(location, rf"cat/a\.png is {match}")


def test_a_zip_bomb(tmp_path: Path, refuse: Refuse) -> None:
    refuse(
        zip_of(tmp_path, ("cat/a.jpg", bytes(2**25))), r"cat/a\.jpg is too large to decode(.|\n)*unpack to 33,554,432"
    )


def test_members_of_a_shard_that_are_not_files(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(PNG)
    kinds = {"link.png": tarfile.SYMTYPE, "hard.png": tarfile.LNKTYPE, "dev.png": tarfile.CHRTYPE}
    with tarfile.open(tmp_path / "set.tar", "w") as archive:
        archive.add(tmp_path / "secret.png", "cat/a.png")
        for name, kind in kinds.items():
            info = tarfile.TarInfo(f"cat/{name}")
            info.type, info.linkname, info.devmajor, info.devminor = kind, str(tmp_path / "secret.png"), 1, 5
            archive.addfile(info)
    stream = read(tmp_path / "set.tar")
    (item,) = stream
    assert item.name.endswith("set.tar/cat/a.png")
    assert {os.path.basename(finding.path) for finding in stream.findings} == set(kinds)  # noqa: PTH119 - not a local path


def nested(root: Path) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 2
    (root / "set.tar").write_bytes((info.tobuf(tarfile.GNU_FORMAT) + b"a".ljust(512, b"\x00")) * 2000)


def huge(root: Path) -> None:
    info = tarfile.TarInfo("cat/a.png")
    info.size = MAX_BYTES + 1
    (root / "set.tar").write_bytes(info.tobuf())
    os.truncate(root / "set.tar", 512 + MAX_BYTES + 512 + 1024)  # sparse: takes no disk space


def labelled(label: bytes, names: str = "") -> Callable[[Path], None]:
    def make(root: Path) -> None:
        write_tar(root / "set.tar", [("0.png", PNG), ("0.cls", label)])
        if names:
            (root / "classnames.txt").write_text(names)

    return make


@pytest.mark.parametrize(
    ("make", "match"),
    [
        pytest.param(nested, r"set\.tar", id="nested headers"),
        pytest.param(huge, r"a\.png is too large", id="a huge image"),
        pytest.param(lambda root: write_tar(root / "set.tar", []), "has no samples", id="empty"),
        pytest.param(
            lambda root: write_tar(root / "set.tar", [("0.png", PNG)]), "sample without a label", id="no label"
        ),
        pytest.param(labelled(b"x" * 5000), r"0\.cls is too large", id="a long label"),
        pytest.param(labelled(b"2", "cat\ndog\n"), "label that is not a listed class", id="a number too high"),
        pytest.param(labelled(b"-1", "cat\ndog\n"), "label that is not a listed class", id="a number too low"),
        pytest.param(labelled(b"fish", "cat\ndog\n"), "label that is not a listed class", id="a name not in the list"),
    ],
)
def test_bad_shards(make, match: str, tmp_path: Path, refuse: Refuse) -> None:
    make(tmp_path)
    refuse(tmp_path / "set.tar", match)


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
def test_a_shard_truncated_anywhere(suffix: str, tmp_path: Path, refuse: Refuse) -> None:
    path = tmp_path / f"set{suffix}"
    write_tar(
        path, [(f"cat/{number}.png", png(each.pixels)) for number, each in enumerate(samples())], "w:" + suffix[5:]
    )
    data = path.read_bytes()
    for cut in range(0, len(data.rstrip(b"\x00")) - 64, 256 if suffix == ".tar" else 32):
        path.write_bytes(data[:cut])
        assert path.name in refuse(path, "Got ").wrong, cut


@pytest.fixture(scope="module", params=FILES)
def fuzzed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path]:
    """Data in one layout: its location, the file to change, and an intact copy of that file."""
    layout = LAYOUTS[request.param]
    root, copy = tmp_path_factory.mktemp("fuzz"), tmp_path_factory.mktemp("copy") / "whole"
    location = layout.write(root, samples(**layout.options))
    copy.write_bytes((root / FILES[request.param]).read_bytes())
    return location, root / FILES[request.param], copy


changes = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=6)


@settings(max_examples=60, deadline=None)
@given(changes=changes, fraction=st.floats(0, 1) | st.just(1.0))
def test_any_bytes_are_read_or_refused(fuzzed, changes, fraction: float, child: Child) -> None:
    location, path, copy = fuzzed
    data = bytearray(copy.read_bytes())
    for position, value in changes:
        data[int(position * len(data))] = value
    path.write_bytes(data[: round(fraction * len(data))])
    outcome = child.ask(location)
    assert outcome in ("read", "refused"), outcome
