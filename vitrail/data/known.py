"""Data sets that are known by name: found on the disk, or fetched once and checked against their published sums."""

from __future__ import annotations

import csv
import hashlib
import http.client
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from vitrail.data.directories import cache_dir
from vitrail.errors import DataError, brief, unknown_name

DEBIAN = Path("/usr/share/datasets")
FILES = (".zip", ".npz", ".csv", ".tsv", ".parquet")
ARCHIVES = (".tgz", ".tar.gz", ".tar")
TIMEOUT = 30  # seconds without a byte
CHUNK = 2**20
Progress = Callable[[int, int], None]


@cache
def known_names() -> dict[str, dict[str, Any]]:
    """The table of known data sets."""
    return yaml.safe_load(files("vitrail.data").joinpath("known.yaml").read_text(encoding="utf-8"))


def find(word: str, data_dir: Path | None = None, progress: Progress | None = None) -> Path:
    """Where a known data set lies: in the given folder, in Debian's, in the cache, or there after a download."""
    name = word.casefold().replace("_", "-")
    if name not in known_names() or "/" in word:
        if "/" in word or "." in word:
            raise DataError(f"there is nothing at {word}.", got="a path that leads nowhere.", hint="an existing path.")
        raise unknown_name("data", word, known_names(), more="Or a path that exists.")
    places = [place for place in (data_dir, DEBIAN, cache_dir("data")) if place is not None]
    for place in places:
        found = _look(place, name)
        if found is not None:
            return found
    return _fetch(name, places, progress)


def _look(folder: Path, name: str) -> Path | None:
    """The data set's folder or file in a folder, under any of its usual names."""
    wanted = {
        spelled for each in (name, *known_names()[name].get("folders", ())) for spelled in (each, each.replace("-", ""))
    }
    if not folder.is_dir():
        return None
    for path in sorted(folder.iterdir()):
        called = path.name.casefold().replace("_", "-")
        if path.is_dir() and called in wanted:
            return _within(path, name)
        if path.suffix.lower() in FILES and Path(called).stem in wanted:
            return path
    return None


def _within(folder: Path, name: str) -> Path | None:
    """What of the folder is the data: an index of ours, the one data file or the one folder in it, or itself."""
    if (folder / "index.csv").is_file():
        return folder / "index.csv"
    entries = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
    data = [path for path in entries if path.suffix.lower() in FILES]
    if len(data) == 1:
        return data[0]
    inner = [path for path in entries if path.is_dir() and path.name in known_names()[name].get("folders", ())]
    if inner:
        return inner[0]
    return folder if entries else None


def _fetch(name: str, looked: list[Path], progress: Progress | None) -> Path:
    """Download into a folder of its own beside the final one, check, unpack, and only then give it its name."""
    entry = known_names()[name]
    root = cache_dir("data")
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"the cache in {root} cannot be written.", got=brief(error), hint="VITRAIL_CACHE at another place."
        ) from None
    with tempfile.TemporaryDirectory(dir=root, prefix=f".{name}-") as temporary:
        folder = Path(temporary) / name
        folder.mkdir()
        done = 0
        for file, checksum in entry["files"].items():
            for step in _download(entry["base"] + file, folder / file, checksum, name, looked):
                done += step
                if progress is not None:
                    progress(done, max(done, entry["bytes"]))
            if file.endswith(ARCHIVES):
                _unpack(folder / file)
        if "index" in entry:
            rows = INDEXES[entry["index"]](folder)
            with (folder / "index.csv").open("w", newline="", encoding="utf-8") as table:
                csv.writer(table).writerows([("path", "label", "split"), *rows])
        target = root / name
        if not target.exists():  # else another process was faster
            folder.replace(target)
    found = _look(root, name)
    assert found is not None
    return found


def _download(url: str, path: Path, checksum: str, name: str, looked: list[Path]) -> Iterator[int]:
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer, path.open("wb") as file:  # noqa: S310 - ours
            while chunk := answer.read(CHUNK):
                digest.update(chunk)
                file.write(chunk)
                yield len(chunk)
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        places = ", ".join(str(place) for place in looked)
        raise DataError(
            f"{name} is not on this machine and cannot be fetched.",
            got=f"{path.name}: {brief(error)} Looked in {places}.",
            hint=f"a network, or --data-dir DIR with {name} in it.",
        ) from None
    if digest.hexdigest() != checksum:
        raise DataError(
            f"{url} is not what it should be.",
            got=f"the MD5 sum {digest.hexdigest()} instead of {checksum}.",
            hint="again later.",
        )


def _unpack(archive: Path) -> None:
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(archive.parent, filter="data")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"{archive.name} cannot be unpacked.", got=brief(error), hint="again later.") from None
    archive.unlink()


def _index_pets(folder: Path) -> Iterator[tuple[str, str, str]]:
    """The lists of Oxford-IIIT Pet: a picture's name, in which the breed stands before the last underscore."""
    for split, lines in (("train", "trainval.txt"), ("test", "test.txt")):
        for line in (folder / "annotations" / lines).read_text(encoding="utf-8").splitlines():
            picture = line.split()[0]
            yield f"images/{picture}.jpg", picture.rpartition("_")[0], split


def _index_flowers(folder: Path) -> Iterator[tuple[str, str, str]]:
    """The tables of Oxford Flowers 102, which count from one."""
    from scipy.io import loadmat

    labels = loadmat(folder / "imagelabels.mat")["labels"].ravel()
    sets = loadmat(folder / "setid.mat")
    for split, key in (("train", "trnid"), ("val", "valid"), ("test", "tstid")):
        for number in sets[key].ravel().tolist():
            yield f"jpg/image_{number:05d}.jpg", str(labels[number - 1]), split


INDEXES: dict[str, Callable[[Path], Iterator[tuple[str, str, str]]]] = {
    "pets": _index_pets,
    "flowers": _index_flowers,
}
