"""One tiny dataset, written in every layout that Vitrail reads."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image
from pyarrow import parquet
from scipy.io import savemat

from vitrail.data.decode import as_pixels
from vitrail.data.reader import Reader
from vitrail.data.table import SPLITS, Source
from vitrail.data.transform import Preprocess

NAMES = ("cat", "dog", "Äpfel")
NUMBERS = ("2", "7", "10")
COUNTS = {"train": (2, 2, 2), "val": (1, 0, 1), "test": (1, 2, 1)}  # per class; one is missing from val
LONG = {"train": "train", "val": "validation", "test": "test"}


class Sample(NamedTuple):
    split: str
    label: str
    name: str
    pixels: NDArray[np.uint8]


def samples(
    names: Sequence[str] = NAMES,
    *,
    rows: int = 8,
    columns: int = 6,
    grey: bool = False,
    splits: Sequence[str] = SPLITS,
) -> list[Sample]:
    """Images of random pixels by split and class; the first of each class in a split is grey."""
    random = np.random.default_rng(0)
    dataset: list[Sample] = []
    for split in splits:
        for label, count in zip(names, COUNTS[split], strict=True):
            for number in range(count):
                shape = (rows, columns) if grey or number == 0 else (rows, columns, 3)
                pixels = random.integers(0, 256, shape, dtype=np.uint8)
                dataset.append(Sample(split, label, f"{split}/{label}/{number}.png", pixels))
    return dataset


def digest(pixels: NDArray[np.uint8]) -> str:
    return hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).hexdigest()[:12]


def expected(dataset: Sequence[Sample]) -> list[tuple[str, str, str]]:
    return [(each.split, each.label, digest(as_pixels(each.pixels))) for each in dataset]


def digests(source: Source, *, rows: int = 8, columns: int = 6) -> list[str]:
    """Hashes of the pixels of a source, in its own order."""
    reader = Reader(Preprocess(size=(rows, columns)))
    return [digest(reader.read(item)) for item in source]


def contents(source: Source, **size: int) -> list[tuple[str, str, str]]:
    """The split, class and pixel hash of each image of a source, split by split."""
    found = []
    for split in source.split_names:
        part = source.split(split)
        labels = [source.classes[label] for item in part for label in item.labels]
        found += zip([split] * len(labels), labels, digests(part, **size), strict=True)
    return found


def png(pixels: NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def class_list(dataset: Sequence[Sample]) -> list[str]:
    """All classes, in another order than Vitrail's: matching labels by number alone would fail."""
    return sorted({each.label for each in dataset}, reverse=True)


def write_folder(root: Path, dataset: Sequence[Sample]) -> str:
    for each in dataset:
        (root / each.name).parent.mkdir(parents=True, exist_ok=True)
        (root / each.name).write_bytes(png(each.pixels))
    return str(root)


def write_zip(root: Path, dataset: Sequence[Sample], outer: str = "") -> str:
    with zipfile.ZipFile(root / "set.zip", "w") as archive:
        for each in dataset:
            archive.writestr(outer + each.name, png(each.pixels))
    return str(root / "set.zip")


def columns_of(dataset: Sequence[Sample]) -> dict[str, list[Any]]:
    labels, splits = [each.label for each in dataset], [each.split for each in dataset]
    return {"path": [f"images/{each.name}" for each in dataset], "label": labels, "split": splits}


def write_table(root: Path, dataset: Sequence[Sample], suffix: str = ".csv", delimiter: str = ",") -> str:
    write_folder(root / "images", dataset)
    columns = columns_of(dataset)
    with (root / f"set{suffix}").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows([columns, *zip(*columns.values(), strict=True)])
    return str(root / f"set{suffix}")


def write_parquet_of_paths(root: Path, dataset: Sequence[Sample]) -> str:
    write_folder(root / "images", dataset)
    parquet.write_table(pa.table(columns_of(dataset)), root / "set.parquet", row_group_size=5)
    return str(root / "set.parquet")


def write_parquet_of_images(root: Path, dataset: Sequence[Sample]) -> str:
    columns = columns_of(dataset)
    columns["image"] = [{"bytes": png(each.pixels), "path": None} for each in dataset]
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    table = pa.table({**columns, "path": columns["split"], "image": pa.array(columns["image"], kind)}).drop(["path"])
    parquet.write_table(table, root / "set.parquet", row_group_size=5)
    return str(root / "set.parquet")


def build_dataset(dataset: Sequence[Sample], names: Sequence[str]) -> datasets.Dataset:
    kinds = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=list(names)))
    cells = [{"bytes": png(each.pixels), "path": None} for each in dataset]
    return datasets.Dataset.from_dict({"image": cells, "label": [each.label for each in dataset]}, features=kinds)


def split_up(dataset: Sequence[Sample]) -> dict[str, list[Sample]]:
    present = [split for split in SPLITS if any(each.split == split for each in dataset)]
    return {split: [each for each in dataset if each.split == split] for split in present}


def write_hub_folder(root: Path, dataset: Sequence[Sample]) -> str:
    (root / "data").mkdir()
    for split, part in split_up(dataset).items():
        rows = build_dataset(part, class_list(dataset))
        rows.to_parquet(root / "data" / f"{LONG[split]}-00000-of-00001.parquet", batch_size=2)
    return str(root)


def write_saved(root: Path, dataset: Sequence[Sample]) -> str:
    parts = {LONG[split]: build_dataset(part, class_list(dataset)) for split, part in split_up(dataset).items()}
    datasets.DatasetDict(parts).save_to_disk(root / "saved", num_shards={**dict.fromkeys(parts, 1), "train": 2})
    return str(root / "saved")


def write_npz(root: Path, dataset: Sequence[Sample], images: str = "x_{}", labels: str = "y_{}") -> str:
    names = class_list(dataset)
    arrays: dict[str, Any] = {"names": np.array(names)}
    for split, part in split_up(dataset).items():
        arrays[images.format(split)] = np.stack([as_pixels(each.pixels) for each in part])
        arrays[labels.format(split)] = np.array([names.index(each.label) for each in part])
    np.savez_compressed(root / "set.npz", **arrays)
    return str(root / "set.npz")


def write_idx(root: Path, dataset: Sequence[Sample], suffix: str = "") -> str:
    for split, part in split_up(dataset).items():
        stem = "t10k" if split == "test" else split
        images = np.stack([each.pixels for each in part])
        labels = np.array([int(each.label) for each in part], dtype=np.uint8)
        for name, array in ((f"{stem}-images-idx3-ubyte", images), (f"{stem}-labels-idx1-ubyte", labels)):
            header = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, dtype=">u4").tobytes()
            data = header + array.tobytes()
            (root / (name + suffix)).write_bytes(gzip.compress(data, mtime=0) if suffix else data)
    return str(root)


def write_cifar(root: Path, dataset: Sequence[Sample], *, hundred: bool = False) -> str:
    names = class_list(dataset)
    records = {split: [] for split in ("train", "test")}
    for each in dataset:
        label = bytes([7, names.index(each.label)] if hundred else [names.index(each.label)])
        records[each.split].append(label + as_pixels(each.pixels).transpose(2, 0, 1).tobytes())
    train, test = records.values()
    files = {"data_batch_1.bin": train[:4], "data_batch_2.bin": train[4:], "test_batch.bin": test}
    for name, part in ({"train.bin": train, "test.bin": test} if hundred else files).items():
        (root / name).write_bytes(b"".join(part))
    (root / ("fine_label_names.txt" if hundred else "batches.meta.txt")).write_text("\n".join(names) + "\n\n")
    return str(root)


def write_tar(path: Path, members: Sequence[tuple[str, bytes]], mode: str = "w") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def write_shards(root: Path, dataset: Sequence[Sample]) -> str:
    """Each image followed by its class number, two images per shard, with a list of class names."""
    names = class_list(dataset)
    (root / "classnames.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    for split, part in split_up(dataset).items():
        for start in range(0, len(part), 2):
            members = []
            for number, each in enumerate(part[start : start + 2], start):
                label = str(names.index(each.label)).encode()
                members += [(f"{number:04d}.png", png(each.pixels)), (f"{number:04d}.cls", label)]
            write_tar(root / f"{split}-{start // 2:06d}.tar", members)
    return str(root)


def write_shards_of_folders(root: Path, dataset: Sequence[Sample]) -> str:
    for split, part in split_up(dataset).items():
        members = [(each.name.removeprefix(f"{split}/"), png(each.pixels)) for each in part]
        write_tar(root / split / "000.tar.gz", members, "w:gz")
    return str(root)


def pack(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(folder, folder.name)
    return buffer.getvalue()


def to_mat(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    savemat(buffer, arrays)
    return buffer.getvalue()


def download_files(name: str, root: Path, dataset: Sequence[Sample]) -> dict[str, bytes]:
    """The files of a known dataset as their authors publish them."""
    if name == "mnist":
        write_idx(root, dataset, ".gz")
        return {path.name: path.read_bytes() for path in root.iterdir()}
    inner = {"cifar10": "cifar-10-batches-bin", "imagenette": "imagenette2-160", "oxford-pets": "images"}
    folder = root / inner.get(name, "jpg")
    folder.mkdir()
    if name == "cifar10":
        write_cifar(folder, dataset)
        return {"cifar-10-binary.tar.gz": pack(folder)}
    if name == "imagenette":
        write_folder(folder, dataset)
        return {"imagenette2-160.tgz": pack(folder)}
    if name == "oxford-pets":
        (root / "annotations").mkdir()
        for split, file in (("train", "trainval.txt"), ("test", "test.txt")):
            stems = {f"{each.label}_{number}": each for number, each in enumerate(dataset) if each.split == split}
            (root / "annotations" / file).write_text("".join(f"{stem} 1 1 1\n" for stem in stems))
            for stem, each in stems.items():
                (folder / f"{stem}.jpg").write_bytes(png(each.pixels))
        return {"images.tar.gz": pack(folder), "annotations.tar.gz": pack(root / "annotations")}
    for number, each in enumerate(dataset, 1):
        (folder / f"image_{number:05d}.jpg").write_bytes(png(each.pixels))
    rows = {split: [number for number, each in enumerate(dataset, 1) if each.split == split] for split in COUNTS}
    return {
        "102flowers.tgz": pack(folder),
        "imagelabels.mat": to_mat(labels=[[int(each.label) for each in dataset]]),
        "setid.mat": to_mat(trnid=[rows["train"]], valid=[rows["val"]], tstid=[rows["test"]]),
    }


class Layout(NamedTuple):
    source: str
    write: Callable[[Path, Sequence[Sample]], str]
    options: dict[str, Any]
    """Arguments of `samples` that this layout needs."""


ANY: dict[str, Any] = {}
GREY = {"grey": True, "names": NUMBERS}
SMALL = {"rows": 32, "columns": 32, "splits": ("train", "test")}
LAYOUTS = {
    "folder": Layout("folder", write_folder, ANY),
    "zip": Layout("zip_archive", write_zip, ANY),
    "zip with a folder around": Layout("zip_archive", partial(write_zip, outer="Äußeres/"), ANY),
    "csv": Layout("csv", write_table, ANY),
    "tsv": Layout("csv", partial(write_table, suffix=".TSV", delimiter="\t"), ANY),
    "parquet of paths": Layout("parquet", write_parquet_of_paths, ANY),
    "parquet of images": Layout("parquet", write_parquet_of_images, ANY),
    "hub folder": Layout("parquet", write_hub_folder, ANY),
    "saved": Layout("saved_dataset", write_saved, ANY),
    "npz": Layout("npz", write_npz, ANY),
    "npz, the other names": Layout("npz", partial(write_npz, images="{}_images", labels="{}_labels"), ANY),
    "idx": Layout("idx", write_idx, GREY),
    "idx.gz": Layout("idx", partial(write_idx, suffix=".gz"), GREY),
    "cifar10": Layout("cifar", write_cifar, SMALL),
    "cifar100": Layout("cifar", partial(write_cifar, hundred=True), SMALL),
    "shards": Layout("shards", write_shards, ANY),
    "shards of folders": Layout("shards", write_shards_of_folders, ANY),
}
FILES = {  # one file of each layout, to damage
    "csv": "set.csv",
    "parquet of paths": "set.parquet",
    "parquet of images": "set.parquet",
    "hub folder": "data/validation-00000-of-00001.parquet",
    "saved": "saved/validation/data-00000-of-00001.arrow",
    "npz": "set.npz",
    "idx": "t10k-images-idx3-ubyte",
    "idx.gz": "val-labels-idx1-ubyte.gz",
    "zip": "set.zip",
    "shards": "val-000000.tar",
    "shards of folders": "val/000.tar.gz",
    "cifar10": "test_batch.bin",
}
