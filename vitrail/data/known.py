"""Data sets known by name: found on disk, or downloaded once and verified by their published checksums."""

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
    """The path of a known data set: in `data_dir`, in Debian's folder, or in the cache, after a download if needed."""
    name = word.casefold().replace("_", "-")
    if name not in known_names() or "/" in word:
        if "/" in word or "." in word:
            existing = next(folder for folder in Path(word).absolute().parents if folder.is_dir())
            raise DataError(f"there is nothing at {word}.", hint=f"a path in {existing}, which exists.")
        raise unknown_name("data", word, known_names(), more="Or a path that exists.")
    folders = [folder for folder in (data_dir, DEBIAN, cache_dir("data")) if folder is not None]
    for folder in folders:
        found = _find_in(folder, name)
        if found is not None:
            return found
    return _fetch(name, folders, progress)


def _find_in(folder: Path, name: str) -> Path | None:
    """The data set's folder or file in a folder, under any of its usual names."""
    names = (name, *known_names()[name].get("folders", ()))
    spellings = {spelling for each in names for spelling in (each, each.replace("-", ""))}
    if not folder.is_dir():
        return None
    for path in sorted(folder.iterdir()):
        spelled = path.name.casefold().replace("_", "-")
        if path.is_dir() and spelled in spellings:
            return _data_in(path, name)
        if path.suffix.lower() in FILES and Path(spelled).stem in spellings:
            return path
    return None


def _data_in(folder: Path, name: str) -> Path | None:
    """The data within a folder: our own index, the only data file, a known inner folder, or the folder itself."""
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


def _fetch(name: str, searched: list[Path], progress: Progress | None) -> Path:
    """Download into a temporary folder next to the final one, verify, unpack, and only then rename it."""
    entry = known_names()[name]
    root = cache_dir("data")
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"the cache in {root} cannot be written.",
            got=brief(error),
            hint="setting VITRAIL_CACHE to another folder.",
        ) from None
    with tempfile.TemporaryDirectory(dir=root, prefix=f".{name}-") as temporary:
        folder = Path(temporary) / name
        folder.mkdir()
        done = 0
        for file, checksum in entry["files"].items():
            for step in _download(entry["base"] + file, folder / file, checksum, name, searched):
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
    found = _find_in(root, name)
    assert found is not None
    return found


def _download(url: str, path: Path, checksum: str, name: str, searched: list[Path]) -> Iterator[int]:
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
        folders = ", ".join(str(folder) for folder in searched)
        raise DataError(
            f"{name} is not on this machine and cannot be downloaded.",
            got=f"{path.name}: {brief(error)} Looked in {folders}.",
            hint=f"connecting to a network, or --data-dir DIR with {name} in it.",
        ) from None
    if digest.hexdigest() != checksum:
        raise DataError(
            f"{url} has the wrong checksum.",
            got=f"MD5 {digest.hexdigest()} instead of {checksum}.",
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
    """From the lists of Oxford-IIIT Pet: image names, in which the breed is before the last underscore."""
    for split, lines in (("train", "trainval.txt"), ("test", "test.txt")):
        for line in (folder / "annotations" / lines).read_text(encoding="utf-8").splitlines():
            name = line.split()[0]
            yield f"images/{name}.jpg", name.rpartition("_")[0], split


def _index_flowers(folder: Path) -> Iterator[tuple[str, str, str]]:
    """From the tables of Oxford Flowers 102, which count from one."""
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
