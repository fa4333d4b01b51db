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
from pathlib import Path

import lmdb
import numpy as np

from vitrail.data.decode import Pixels
from vitrail.data.places import cache_dir
from vitrail.data.table import Content
from vitrail.errors import DataError

HEAD = struct.Struct("<HHB")  # rows, columns, channels
KEY_BYTES = 16
COMMIT_BYTES = 32 * 2**20  # of pixels that wait to be written together
GIB = 2**30
MIN_BYTES = 2**20
VERSION = 1  # of the way from bytes to pixels; a change makes all older pixels useless
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
        root = folder or cache_dir("pixels")
        if outside is not None and root.resolve().is_relative_to(outside.resolve()):
            raise DataError(
                "the cache would lie inside the data, which is never written to.",
                got=f"{root} in {outside}.",
                hint="VITRAIL_CACHE at another place.",
            )
        name = hashlib.blake2b(f"{VERSION} {form}".encode(), digest_size=8).hexdigest()
        limit = int(limit_gb * GIB)
        others = _make_room(root, name, limit)
        self.path = root / name
        self.path.mkdir(parents=True, exist_ok=True)
        os.utime(self.path)
        self.environment = _open(self.path, max(MIN_BYTES, limit - others))
        self.lock = threading.Lock()
        self.waiting: list[tuple[bytes, bytes, Pixels]] = []
        self.waiting_bytes = 0
        self.full = False

    def known(self, stamp: str) -> bytes | None:
        """The key of a picture whose stamp was seen before: then its content need not be read."""
        with self.environment.begin() as reading:
            return reading.get(_stamp_key(stamp)) if stamp else None

    def get(self, key: bytes) -> Pixels | None:
        """The pixels under a key, if they are there."""
        with self.environment.begin(buffers=True) as reading:
            found = reading.get(b"p" + key)
            if found is None:
                return None
            shape = HEAD.unpack_from(found)
            return np.frombuffer(found, dtype=np.uint8, offset=HEAD.size).reshape(shape).copy()

    def put(self, key: bytes, stamp: str, pixels: Pixels) -> None:
        """Keep pixels; they are written together with others, unless the limit is reached."""
        if self.full:
            return
        with self.lock:
            self.waiting.append((key, _stamp_key(stamp) if stamp else b"", pixels))
            self.waiting_bytes += pixels.nbytes
            if self.waiting_bytes >= COMMIT_BYTES:
                self._commit()

    def flush(self) -> None:
        """Write what waits."""
        with self.lock:
            self._commit()

    def close(self) -> None:
        """Write what waits and let go of the file."""
        self.flush()
        self.environment.close()

    def _commit(self) -> None:
        waiting, self.waiting, self.waiting_bytes = self.waiting, [], 0
        if not waiting or self.full:
            return
        try:
            with self.environment.begin(write=True) as writing:
                for key, stamp_key, pixels in waiting:
                    writing.put(b"p" + key, HEAD.pack(*pixels.shape) + pixels.tobytes(), overwrite=False)
                    if stamp_key:
                        writing.put(stamp_key, key)
        except lmdb.MapFullError:
            self.full = True
            logger.info("the pixel cache is full: the rest is decoded each time")
        except (lmdb.Error, OSError) as error:
            self.full = True
            logger.warning("the pixel cache cannot be written: %s", error)


def _stamp_key(stamp: str) -> bytes:
    return b"s" + hashlib.blake2b(stamp.encode("utf-8", "surrogateescape"), digest_size=KEY_BYTES).digest()


def _open(path: Path, size: int) -> lmdb.Environment:
    """The file of a cache; one that is damaged is begun anew, for it can be made again."""
    for attempt in (1, 2):
        try:
            return lmdb.open(str(path), map_size=size, max_readers=1024, readahead=False)
        except lmdb.Error as error:
            if attempt == 2 or isinstance(error, (lmdb.LockError, lmdb.ReadersFullError)):
                raise DataError(f"the cache in {path} cannot be used.", got=f"{error}.", hint="no cache.") from None
            logger.warning("the pixel cache is damaged and begun anew: %s", error)
            shutil.rmtree(path)
            path.mkdir()
    raise AssertionError


def _make_room(root: Path, name: str, limit: int) -> int:
    """Forget the forms that were not used for longest, until they leave half of the limit; their size in bytes."""
    others = []
    if root.is_dir():
        for path in root.iterdir():
            file = path / "data.mdb"
            if path.name != name and file.is_file():
                state = file.stat()
                others.append((path.stat().st_mtime, min(state.st_size, state.st_blocks * 512), path))
    total = sum(size for _, size, _ in others)
    for _, size, path in sorted(others):
        if total <= limit // 2:
            break
        shutil.rmtree(path, ignore_errors=True)
        total -= size
    return total
