"""A memory-mapped cache of decoded and resized pixels, so that the second epoch is cheap.

LMDB writes whole transactions or nothing, so the cache stays usable after a crash at any moment, and processes can
share it. It is stored in Vitrail's own folder, never in the user's data.
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

HEADER = struct.Struct("<HHBxI")  # rows, columns, channels, checksum of the pixels
KEY_BYTES = 16
COMMIT_BYTES = 32 * 2**20  # of pixels, written in one transaction
GIB = 2**30
MIN_BYTES = 2**20
VERSION = 1  # of decoding and resizing; a change invalidates all older pixels
DAMAGED = (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError)
FILE = "data.mdb"
FULL = "is full: the remaining images are decoded every time"
logger = logging.getLogger("vitrail")


def digest(content: Content) -> bytes:
    """The key of an image: a hash of its content, whatever its name."""
    hasher = hashlib.blake2b(digest_size=KEY_BYTES)
    if isinstance(content, np.ndarray):
        hasher.update(repr(content.shape).encode())
        hasher.update(content.tobytes())
    else:
        hasher.update(content)
    return hasher.digest()


class PixelCache:
    """Pixels by content hash for one form (how images are decoded and resized); the limit is for all forms together."""

    def __init__(self, form: str, *, limit_gb: float, folder: Path | None = None, outside: Path | None = None) -> None:
        self.root = folder or cache_dir("pixels")
        if outside is not None and self.root.resolve().is_relative_to(outside.resolve()):
            raise DataError(
                "the cache must not be inside the data folder, which is never written to.",
                got=f"{self.root} in {outside}.",
                hint="setting VITRAIL_CACHE to another folder.",
            )
        self.path = self.root / hashlib.blake2b(f"{VERSION} {form}".encode(), digest_size=8).hexdigest()
        self.limit = max(MIN_BYTES, int(limit_gb * GIB))
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            os.utime(self.path)
            _evict(self.root, self.path, self.limit)
            self.environment = _open(self.path, self.limit)
        except (OSError, lmdb.Error) as error:
            raise DataError(
                f"the cache in {self.path} cannot be used.",
                got=brief(error),
                hint="setting VITRAIL_CACHE to another folder.",
            ) from None
        self.lock = threading.Lock()
        self.pending: dict[bytes, Pixels] = {}
        self.pending_stamps: dict[bytes, bytes] = {}
        self.pending_bytes = 0
        self.full = False

    def find_key(self, stamp: str) -> bytes | None:
        """The key of an image by its file stamp, so that an unchanged file is not read; None for a new stamp."""
        if not stamp:
            return None
        stamp_key = _stamp_key(stamp)
        with self.lock:
            if stamp_key in self.pending_stamps:
                return self.pending_stamps[stamp_key]
        try:
            with self.environment.begin() as transaction:
                return transaction.get(stamp_key)
        except lmdb.Error:
            return None

    def get(self, key: bytes, *, trusted: bool = False) -> Pixels | None:
        """The pixels of a key, if present and intact; `trusted` skips the checksum, for pixels checked before."""
        with self.lock:
            if key in self.pending:
                return self.pending[key].copy()
        try:
            with self.environment.begin(buffers=True) as transaction:
                value = transaction.get(b"p" + key)
                if value is None:
                    return None
                *shape, checksum = HEADER.unpack_from(value)
                pixels = np.frombuffer(value, dtype=np.uint8, offset=HEADER.size).reshape(shape).copy()
        except (lmdb.Error, ValueError, struct.error):
            return None
        return pixels if trusted or _checksum(pixels) == checksum else None

    def put(self, key: bytes, stamp: str, pixels: Pixels | None) -> None:
        """Store pixels, or only a further stamp of stored pixels (None); written in batches, within the limit."""
        if self.full:
            return
        with self.lock:
            if pixels is not None:
                self.pending[key] = pixels.copy()  # a crop is a view, which would keep the whole image in memory
                self.pending_bytes += pixels.nbytes
            if stamp:
                self.pending_stamps[_stamp_key(stamp)] = key
            if self.pending_bytes >= COMMIT_BYTES:
                self._commit()

    def flush(self) -> None:
        """Write everything that is pending."""
        with self.lock:
            self._commit()

    def close(self) -> None:
        """Flush, and release the file."""
        self.flush()
        _close(self.path)

    def _commit(self) -> None:
        pending, stamps, num_bytes = self.pending, self.pending_stamps, self.pending_bytes
        self.pending, self.pending_stamps, self.pending_bytes = {}, {}, 0
        if self.full or not (pending or stamps):
            return
        if _total_size(self.root) + num_bytes > self.limit:
            self._stop(logging.INFO, FULL)
            return
        try:
            with self.environment.begin(write=True) as transaction:
                for key, pixels in pending.items():
                    header = HEADER.pack(*pixels.shape, _checksum(pixels))
                    transaction.put(b"p" + key, header + pixels.tobytes())
                for stamp_key, key in stamps.items():
                    transaction.put(stamp_key, key)
        except lmdb.MapFullError:
            self._stop(logging.INFO, FULL)
        except (lmdb.Error, OSError) as error:
            self._stop(logging.WARNING, f"cannot be written: {brief(error)}")

    def _stop(self, level: int, reason: str) -> None:
        self.full = True
        logger.log(level, "the pixel cache %s", reason)


def _checksum(pixels: Pixels) -> int:
    return zlib.crc32(np.ascontiguousarray(pixels).data)


def _stamp_key(stamp: str) -> bytes:
    return b"s" + hashlib.blake2b(stamp.encode("utf-8", "surrogateescape"), digest_size=KEY_BYTES).digest()


# LMDB forbids opening a file twice in one process, so caches of the same form share it.
_shared: dict[Path, tuple[lmdb.Environment, int]] = {}
_shared_lock = threading.Lock()


def _open(path: Path, size: int) -> lmdb.Environment:
    """Open the file of a cache; one that is damaged or above the limit is deleted, since it can be rebuilt."""
    with _shared_lock:
        environment, users = _shared.get(path.resolve(), (None, 0))
        if environment is None:
            file = path / FILE
            if file.is_file() and file.stat().st_size > size:
                _clear(path)
            try:
                environment = _open_checked(path, size)
            except DAMAGED as error:
                logger.warning("the pixel cache is damaged and is rebuilt: %s", error)
                _clear(path)
                environment = _open_checked(path, size)
        _shared[path.resolve()] = (environment, users + 1)
        return environment


def _open_checked(path: Path, size: int) -> lmdb.Environment:
    environment = lmdb.open(str(path), map_size=size, max_readers=1024, readahead=False)
    needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    if (path / FILE).stat().st_size < needed and needed > 2 * environment.stat()["psize"]:
        environment.close()  # reading past the end of a mapped file would kill the process
        raise lmdb.CorruptedError("the file is truncated")
    return environment


def _close(path: Path) -> None:
    with _shared_lock:
        environment, users = _shared.pop(path.resolve(), (None, 0))
        if environment is not None and users > 1:
            _shared[path.resolve()] = (environment, users - 1)
        elif environment is not None:
            environment.close()


def _clear(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


def _total_size(root: Path) -> int:
    """The bytes of all forms together."""
    return sum(_size(path) for path in root.iterdir())


def _size(path: Path) -> int:
    try:
        return (path / FILE).stat().st_size
    except OSError:
        return 0


def _evict(root: Path, own: Path, limit: int) -> None:
    """Delete the least recently used forms until the others take at most half of the limit."""
    others = [path for path in root.iterdir() if path != own and _size(path) and path.resolve() not in _shared]
    others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    while others and sum(map(_size, others)) > limit // 2:
        shutil.rmtree(others.pop(), ignore_errors=True)
