"""Every source gives the same images, splits and classes, with little memory; known datasets are found by name."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import datasets
import fsspec
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.contract import layouts
from tests.contract.layouts import LAYOUTS, NAMES, NUMBERS, Layout, contents, digests, expected, samples
from vitrail import plug
from vitrail.data import known
from vitrail.data.find import SOURCES, open_data
from vitrail.errors import DataError, UnknownNameError

KNOWN = known.known_names()  # the real table, before any test changes it


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> Layout:
    return LAYOUTS[request.param]


@pytest.fixture(autouse=True)
def _isolate(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stay out of the user's cache, and silence the progress bars of `datasets`."""
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path_factory.mktemp("cache")))
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


def size_of(layout: Layout) -> dict[str, int]:
    return {key: side for key, side in layout.options.items() if key in ("rows", "columns")}


def test_every_source_has_a_layout_here() -> None:
    assert {layout.source for layout in LAYOUTS.values()} | {"digits"} == set(plug.entries(SOURCES))


def test_every_layout_gives_the_same_data(layout: Layout, tmp_path: Path) -> None:
    dataset = samples(**layout.options)
    source = open_data(layout.write(tmp_path, dataset))
    assert source.classes == layout.options.get("names", NAMES)
    assert source.split_names == layout.options.get("splits", ("train", "val", "test"))
    assert contents(source, **size_of(layout)) == expected(dataset)
    assert digests(source, **size_of(layout)) == [pixels for _, _, pixels in expected(dataset)]
    assert [item.index for item in source] == list(range(len(dataset)))
    assert len(source) == len({item.name for item in source}) == len(dataset)
    assert source.findings == ()


def test_each_layout_is_recognised_only_by_its_source(layout: Layout, tmp_path: Path) -> None:
    """`folder` recognises any folder too, which is why it is tried last."""
    location = layout.write(tmp_path, samples(**layout.options))
    recognised = {name for name in plug.entries(SOURCES) if plug.load(SOURCES, name).recognise(location)}
    assert recognised == {layout.source} | ({"folder"} if Path(location).is_dir() else set())
    assert not plug.load(SOURCES, "digits").recognise(location)


def test_a_class_missing_from_a_split_shifts_nothing(layout: Layout, tmp_path: Path) -> None:
    dataset = samples(**layout.options)
    source = open_data(layout.write(tmp_path, dataset))
    for split in source.split_names:
        part = source.split(split)
        assert part.classes == source.classes
        labels = [part.classes[label] for item in part for label in item.labels]
        assert labels == [each.label for each in dataset if each.split == split]
    with pytest.raises(DataError, match=r"no split 'dev'"):
        source.split("dev")


def test_numeric_classes_sort_as_numbers(layout: Layout, tmp_path: Path) -> None:
    dataset = samples(**{**layout.options, "names": NUMBERS})
    source = open_data(layout.write(tmp_path, dataset))
    assert source.classes == ("2", "7", "10")
    assert sorted(contents(source, **size_of(layout))) == sorted(expected(dataset))


@pytest.mark.parametrize("kind", ["saved", "hub folder"])
def test_splits_that_number_their_classes_differently(kind: str, tmp_path: Path) -> None:
    """Labels are matched by name or refused, but never shifted."""
    parts = layouts.split_up(samples())
    sets = {
        split: layouts.build_dataset(part, dict.fromkeys(each.label for each in part)) for split, part in parts.items()
    }
    if kind == "saved":
        datasets.DatasetDict(sets).save_to_disk(tmp_path)
    else:
        for split, rows in sets.items():
            rows.to_parquet(tmp_path / f"{split}-00000-of-00001.parquet")
    with contextlib.suppress(DataError):
        assert contents(open_data(tmp_path)) == expected(samples())


@pytest.mark.parametrize(
    "location", ["train-{000000..000002}.tar", "train-*.tar", "memory://set/train-{000000..000002}.tar"]
)
def test_shards_by_pattern_and_url(location: str, tmp_path: Path) -> None:
    dataset = samples(splits=("train",))
    layouts.write_shards(tmp_path, dataset)
    memory = fsspec.filesystem("memory")
    try:
        for path in tmp_path.iterdir():
            memory.pipe(f"/set/{path.name}", path.read_bytes())
        source = open_data(location if "://" in location else tmp_path / location)
        assert source.classes == NAMES
        assert contents(source) == expected(dataset)
    finally:
        memory.rm("/set", recursive=True)


MULTI_LABEL = [["cat", "dog"], ["Äpfel"], [], ["dog", "cat", "Äpfel"]]


def write_multi_label(kind: str, root: Path) -> Path:
    dataset = samples()[:4]
    layouts.write_folder(root, dataset)
    paths = [each.name for each in dataset]
    joined = ["cat;dog", "Äpfel", "", "dog | cat|Äpfel"]
    if kind.startswith("csv"):
        header = "path, labels" if "space" in kind else "path,labels"
        lines = [f"{path},{labels}" for path, labels in zip(paths, joined, strict=True)]
        (root / "set.csv").write_text("\n".join([header, *lines]), encoding="utf-8")
        return root / "set.csv"
    names = [*reversed(NAMES)]
    column = {
        "parquet list": pa.array(MULTI_LABEL),
        "parquet large list": pa.array(MULTI_LABEL, pa.large_list(pa.large_string())),
        "parquet text": pa.array(joined),
        "parquet large text": pa.array(joined, pa.large_string()),
        "parquet dictionary": pa.array(joined).dictionary_encode(),
        "parquet numbers": pa.array([[names.index(name) for name in row] for row in MULTI_LABEL]),
    }[kind]
    table = pa.table({"path": paths, "labels": column})
    if kind == "parquet numbers":
        kinds = datasets.Features(path=datasets.Value("string"), labels=datasets.List(datasets.ClassLabel(names=names)))
        table = table.replace_schema_metadata(kinds.arrow_schema.metadata)
    parquet.write_table(table, root / "set.parquet")
    return root / "set.parquet"


@pytest.mark.parametrize(
    "kind",
    [
        "csv",
        "csv with a space in the header",
        "parquet list",
        "parquet large list",
        "parquet text",
        "parquet large text",
        "parquet dictionary",
        "parquet numbers",
    ],
)
def test_several_labels_per_image(kind: str, tmp_path: Path) -> None:
    table = open_data(write_multi_label(kind, tmp_path))
    assert table.classes == NAMES
    assert [list(table.label_names(row)) for row in range(4)] == MULTI_LABEL
    some = table.only([3, 2, 0])
    assert [list(some.label_names(row)) for row in range(3)] == [MULTI_LABEL[3], MULTI_LABEL[2], MULTI_LABEL[0]]
    none = table.only([])
    assert (len(none), len(none.labels), none.labels.dtype) == (0, 0, table.labels.dtype)
    assert none.starts.tolist() == [0]


CSV_MEMORY = """
import sys
import psutil
import vitrail.data.source.csv
from vitrail.data.find import open_data
before = psutil.Process().memory_info().rss
table = open_data(sys.argv[1])
total = sum(table.labels_of(row)[0] for row in range(len(table)))
print(len(table), total, (psutil.Process().memory_info().rss - before) / 2**20)
"""


def test_a_million_rows_take_little_memory(tmp_path: Path) -> None:
    with (tmp_path / "set.csv").open("w") as file:
        file.write("path,label,split\n")
        file.writelines(f"images/{row % 1000:04d}/{row:09d}.jpg,{row % 1000},train\n" for row in range(10**6))
    command = [sys.executable, "-c", CSV_MEMORY, str(tmp_path / "set.csv")]
    fields = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout.split()
    assert [int(field) for field in fields[:2]] == [10**6, 499_500_000]
    print(f"a million rows of CSV take {float(fields[2]):.0f} MiB")
    assert float(fields[2]) < 400


def test_ten_times_the_shards_take_the_same_memory(tmp_path: Path) -> None:
    content = np.random.default_rng(0).bytes(50_000)
    pairs = [[(f"{key}.jpg", content), (f"{key}.cls", b"cat")] for key in range(10)]
    layouts.write_tar(tmp_path / "one.tar", [member for pair in pairs for member in pair])
    peaks = {}
    for num in (20, 200):
        (tmp_path / str(num)).mkdir()
        for shard in range(num):
            os.link(tmp_path / "one.tar", tmp_path / str(num) / f"{shard:06d}.tar")
        tracemalloc.start()
        assert sum(len(item.content()) for item in open_data(tmp_path / str(num))) == num * 10 * 50_000
        peaks[num] = tracemalloc.get_traced_memory()[1] / 2**20
        tracemalloc.stop()
    print(f"peaks: {peaks[20]:.2f} MiB for 20 shards, {peaks[200]:.2f} MiB for 200")
    assert peaks[200] < peaks[20] + 2


def test_only_a_few_row_groups_of_a_parquet_file_are_in_memory(tmp_path: Path) -> None:
    content = np.random.default_rng(0).bytes(2**20)
    parquet.write_table(
        pa.table({"image": [content] * 40, "label": ["cat"] * 40}), tmp_path / "a.parquet", row_group_size=1
    )
    source, before = open_data(tmp_path / "a.parquet"), pa.total_allocated_bytes()
    for item in source:
        assert len(item.content()) == 2**20
        for _ in range(500):  # Arrow's own threads free their memory a little later
            if pa.total_allocated_bytes() - before < 8 * 2**20:
                break
            time.sleep(0.01)
        else:
            pytest.fail(f"{pa.total_allocated_bytes() - before:,} bytes are in memory")


def test_digits_are_built_in() -> None:
    digits = open_data("digits")
    assert (len(digits), digits.classes, digits.split_names) == (1797, tuple("0123456789"), ("train", "test"))
    first = digits[0].content()
    assert (first.shape, first.dtype, first.max(), digits.label_names(0)) == ((8, 8), np.uint8, 239, ("0",))
    assert len(open_data("Digits")) == 1797
    assert len(digits.split("test")) == 1797 // 5


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "num", "num_classes"),
    [("mnist", 12_000, 10), ("cifar10", 12_000, 10), ("CIFAR10", 12_000, 10), ("oxford-pets", 1_480, 37)],
)
def test_names_are_found_in_the_data_dir(
    name: str, num: int, num_classes: int, data_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path))
    source = open_data(name, data_dir=data_dir)
    assert (len(source), len(source.classes)) == (num, num_classes)
    assert list(tmp_path.iterdir()) == []


def test_debians_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "DEBIAN", tmp_path)
    (tmp_path / "fashion-mnist").mkdir()
    layouts.write_idx(tmp_path / "fashion-mnist", samples(("0", "2", "9"), grey=True), ".gz")
    source = open_data("fashion_mnist")
    assert source.classes == ("Ankle boot", "Pullover", "T-shirt/top")
    assert [source.label_names(row)[0] for row in (0, 2, 4)] == ["T-shirt/top", "Pullover", "Ankle boot"]


class Answer(SimpleHTTPRequestHandler):
    """Serves files silently, and something that is not HTTP below /nonsense."""

    def do_GET(self) -> None:
        if self.path.startswith("/nonsense"):
            self.wfile.write(b"how do you do\r\n\r\n")
            self.close_connection = True
        else:
            super().do_GET()

    def log_message(self, *args: Any) -> None:
        pass


Publish = Callable[..., str]


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Publish]:
    """Serves files locally, and puts their URL and checksums into the table of known datasets."""
    served, cache = tmp_path / "served", tmp_path / "cache"
    served.mkdir()
    monkeypatch.setenv("VITRAIL_CACHE", str(cache))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(known, "DEBIAN", tmp_path / "debian")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Answer, directory=str(served))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()

        def put(name: str, contents: dict[str, bytes], base: str = "") -> str:
            assert contents.keys() == KNOWN[name]["files"].keys()
            for file, content in contents.items():
                (served / file).write_bytes(content)
            sums = {file: hashlib.md5(content).hexdigest() for file, content in contents.items()}
            entry = {**KNOWN[name], "base": urljoin(f"http://127.0.0.1:{server.server_port}/", base), "files": sums}
            monkeypatch.setattr(known, "known_names", lambda: {name: entry})
            return name

        yield put
        server.shutdown()
        thread.join()
    gc.collect()  # a connection left open is reported here, not in a later test


TRAIN_TEST = {"splits": ("train", "test")}
DOWNLOADS: dict[str, dict[str, Any]] = {
    "mnist": {**TRAIN_TEST, "grey": True, "names": NUMBERS},
    "cifar10": layouts.SMALL,
    "imagenette": {"splits": ("train", "val")},
    "oxford-pets": {**TRAIN_TEST, "names": ("British_Shorthair", "pug", "Äpfel")},
    "flowers102": {"names": NUMBERS},
}


@pytest.mark.parametrize("name", DOWNLOADS)
def test_downloads(name: str, publish: Publish, tmp_path: Path) -> None:
    dataset = samples(**DOWNLOADS[name])
    (tmp_path / "files").mkdir()
    publish(name, layouts.download_files(name, tmp_path / "files", dataset))
    size = size_of(Layout("", layouts.write_folder, DOWNLOADS[name]))
    assert contents(open_data(name), **size) == expected(dataset)
    assert [path.name for path in (tmp_path / "cache" / "data").iterdir()] == [name]
    for path in (tmp_path / "served").iterdir():
        path.unlink()
    assert contents(open_data(name), **size) == expected(dataset)  # from the cache: nothing is served any more


def test_a_wrong_checksum_is_refused(publish: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = publish("cifar10", {"cifar-10-binary.tar.gz": b"right"})
    (tmp_path / "served" / "cifar-10-binary.tar.gz").write_bytes(b"wrong")
    with pytest.raises(DataError, match=r"has the wrong checksum(.|\n)*MD5"):
        open_data(name)
    assert list((tmp_path / "cache" / "data").iterdir()) == []


@pytest.mark.parametrize("base", ["gone/", "nonsense/", "http://127.0.0.1:1/", "http://127.0.0.1:99999/"])
def test_without_a_network(base: str, publish: Publish, tmp_path: Path) -> None:
    name = publish("cifar10", {"cifar-10-binary.tar.gz": b""}, base)
    with pytest.raises(DataError, match=r"cifar10 is not on this machine(.|\n)*cifar-10-binary\.tar\.gz") as caught:
        open_data(name, data_dir=tmp_path / "mine")
    for folder in ("mine", "debian", "cache/data"):
        assert str(tmp_path / folder) in caught.value.got
    assert list((tmp_path / "cache" / "data").iterdir()) == []


def test_a_cache_that_cannot_be_written(publish: Publish, tmp_path: Path) -> None:
    name = publish("cifar10", {"cifar-10-binary.tar.gz": b""})
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(DataError, match="cache"):
        open_data(name)


def test_an_archive_cannot_escape(publish: Publish, tmp_path: Path) -> None:
    layouts.write_tar(tmp_path / "bad.tgz", [("cifar-10-batches-bin/a.bin", b""), ("../../x", b"out")], "w:gz")
    name = publish("cifar10", {"cifar-10-binary.tar.gz": (tmp_path / "bad.tgz").read_bytes()})
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DataError, match="cannot be unpacked"):
        open_data(name)
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "cache", tmp_path / "cache" / "data"])


@pytest.mark.parametrize(("name", "near"), [("mnits", "mnist"), ("cifar", "cifar10"), ("pets", "oxford-pets")])
def test_an_unknown_name_lists_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UnknownNameError, match=near) as caught:
        open_data(name)
    assert "a path that exists" in caught.value.hint
