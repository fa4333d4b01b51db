"""Decoded and resized pixels in a memory-mapped file, so that the second epoch is cheap.

LMDB does the work: it writes whole transactions or nothing, so a crash at any moment leaves a cache that can be used,
and several processes may share it. It lies in Vitrail's own folder, never in the user's data.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import struct
import threading
import zlib
from pathlib import Path

import lmdb
import numpy as np

from vitrail.data.decode import Pixels
from vitrail.data.directories import cache_dir
from vitrail.data.table import Content
from vitrail.errors import DataError, brief

HEAD = struct.Struct("<HHBxI")  # rows, columns, channels, and a sum over the pixels
KEY_BYTES = 16
COMMIT_BYTES = 32 * 2**20  # of pixels that wait to be written together
GIB = 2**30
MIN_BYTES = 2**20
VERSION = 1  # of the way from bytes to pixels; a change makes all older pixels useless
DAMAGED = (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError)
FILE = "data.mdb"
logger = logging.getLogger("vitrail")


def digest(content: Content) -> bytes:
    """What a picture is known by: its content, not its name."""
    made = hashlib.blake2b(digest_size=KEY_BYTES)
    if isinstance(content, np.ndarray):
        made.update(repr(content.shape).encode())
        made.update(content.tobytes())
    else:
        made.update(content)
    return made.digest()


class PixelCache:
    """Pixels by content for one form (how pictures are decoded and resized), within a limit for all forms together."""

    def __init__(self, form: str, *, limit_gb: float, folder: Path | None = None, outside: Path | None = None) -> None:
        self.root = folder or cache_dir("pixels")
        if outside is not None and self.root.resolve().is_relative_to(outside.resolve()):
            raise DataError(
                "the cache would lie inside the data, which is never written to.",
                got=f"{self.root} in {outside}.",
                hint="VITRAIL_CACHE at another place.",
            )
        self.path = self.root / hashlib.blake2b(f"{VERSION} {form}".encode(), digest_size=8).hexdigest()
        self.limit = max(MIN_BYTES, int(limit_gb * GIB))
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            os.utime(self.path)
            _make_room(self.root, self.path, self.limit)
            self.environment = _open(self.path, self.limit)
        except (OSError, lmdb.Error) as error:
            raise DataError(
                f"the cache in {self.path} cannot be used.", got=brief(error), hint="VITRAIL_CACHE at another place."
            ) from None
        self.lock = threading.Lock()
        self.waiting: dict[bytes, Pixels] = {}
        self.waiting_stamps: dict[bytes, bytes] = {}
        self.waiting_bytes = 0
        self.full = False

    def known(self, stamp: str) -> bytes | None:
        """The key of a picture whose stamp was seen before: then its content need not be read."""
        if not stamp:
            return None
        stamp_key = _stamp_key(stamp)
        with self.lock:
            if stamp_key in self.waiting_stamps:
                return self.waiting_stamps[stamp_key]
        try:
            with self.environment.begin() as reading:
                return reading.get(stamp_key)
        except lmdb.Error:
            return None

    def get(self, key: bytes, *, trusted: bool = False) -> Pixels | None:
        """The pixels under a key, if they are there and whole; `trusted` if this process has seen that they are."""
        with self.lock:
            if key in self.waiting:
                return self.waiting[key].copy()
        try:
            with self.environment.begin(buffers=True) as reading:
                found = reading.get(b"p" + key)
                if found is None:
                    return None
                *shape, checksum = HEAD.unpack_from(found)
                pixels = np.frombuffer(found, dtype=np.uint8, offset=HEAD.size).reshape(shape).copy()
        except (lmdb.Error, ValueError, struct.error):
            return None
        return pixels if trusted or _sum(pixels) == checksum else None

    def put(self, key: bytes, stamp: str, pixels: Pixels | None) -> None:
        """Keep pixels, or only the stamp of pixels that are there; written together with others, within the limit."""
        if self.full:
            return
        with self.lock:
            if pixels is not None:
                self.waiting[key] = pixels.copy()  # of a crop, the rest of the picture would stay in memory with it
                self.waiting_bytes += pixels.nbytes
            if stamp:
                self.waiting_stamps[_stamp_key(stamp)] = key
            if self.waiting_bytes >= COMMIT_BYTES:
                self._commit()

    def flush(self) -> None:
        """Write what waits."""
        with self.lock:
            self._commit()

    def close(self) -> None:
        """Write what waits and let go of the file."""
        self.flush()
        _close(self.path)

    def _commit(self) -> None:
        waiting, stamps = self.waiting, self.waiting_stamps
        coming, self.waiting, self.waiting_stamps, self.waiting_bytes = self.waiting_bytes, {}, {}, 0
        if self.full or not (waiting or stamps):
            return
        if _used(self.root) + coming > self.limit:
            self._stop(logging.INFO, "is full: the rest is decoded each time")
            return
        try:
            with self.environment.begin(write=True) as writing:
                for key, pixels in waiting.items():
                    head = HEAD.pack(*pixels.shape, _sum(pixels))
                    writing.put(b"p" + key, head + pixels.tobytes())
                for stamp_key, key in stamps.items():
                    writing.put(stamp_key, key)
        except lmdb.MapFullError:
            self._stop(logging.INFO, "is full: the rest is decoded each time")
        except (lmdb.Error, OSError) as error:
            self._stop(logging.WARNING, f"cannot be written: {brief(error)}")

    def _stop(self, level: int, reason: str) -> None:
        self.full = True
        logger.log(level, "the pixel cache %s", reason)


def _sum(pixels: Pixels) -> int:
    return zlib.crc32(np.ascontiguousarray(pixels).data)


def _stamp_key(stamp: str) -> bytes:
    return b"s" + hashlib.blake2b(stamp.encode("utf-8", "surrogateescape"), digest_size=KEY_BYTES).digest()


# LMDB forbids a process to open a file twice, so those that want the same form share it.
_shared: dict[Path, tuple[lmdb.Environment, int]] = {}
_sharing = threading.Lock()


def _open(path: Path, size: int) -> lmdb.Environment:
    """The file of a cache; one that is damaged, or above the limit, is begun anew, for it can be made again."""
    with _sharing:
        environment, users = _shared.get(path.resolve(), (None, 0))
        if environment is None:
            file = path / FILE
            if file.is_file() and file.stat().st_size > size:
                _forget(path)
            try:
                environment = _opened(path, size)
            except DAMAGED as error:
                logger.warning("the pixel cache is damaged and begun anew: %s", error)
                _forget(path)
                environment = _opened(path, size)
        _shared[path.resolve()] = (environment, users + 1)
        return environment


def _opened(path: Path, size: int) -> lmdb.Environment:
    environment = lmdb.open(str(path), map_size=size, max_readers=1024, readahead=False)
    needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    if (path / FILE).stat().st_size < needed and needed > 2 * environment.stat()["psize"]:
        environment.close()  # reading past the end of a mapped file would end the process
        raise lmdb.CorruptedError("the file is cut short")
    return environment


def _close(path: Path) -> None:
    with _sharing:
        environment, users = _shared.pop(path.resolve(), (None, 0))
        if environment is not None and users > 1:
            _shared[path.resolve()] = (environment, users - 1)
        elif environment is not None:
            environment.close()


def _forget(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


def _used(root: Path) -> int:
    """The bytes of all forms together."""
    return sum(_size(path) for path in root.iterdir())


def _size(path: Path) -> int:
    try:
        return (path / FILE).stat().st_size
    except OSError:
        return 0


def _make_room(root: Path, own: Path, limit: int) -> None:
    """Forget the forms that were not used for longest, until they leave half of the limit."""
    others = [path for path in root.iterdir() if path != own and _size(path) and path.resolve() not in _shared]
    others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    while others and sum(map(_size, others)) > limit // 2:
        shutil.rmtree(others.pop(), ignore_errors=True)
