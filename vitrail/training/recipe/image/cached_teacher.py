"""A teacher whose logits are cached on disk: an image with the same augmentation is passed through it once.

An image is known by the hash of its pixels. The last bits of its logits depend on the other images that are passed at
the same time. So that a resumed run gets the same bits, each record of the cache names the batch in which the image was
passed first: where that batch is repeated, its images are passed again, and no others. Records have a checksum. On a
full disk the cache is emptied, so that checkpoints have its room, and the teacher runs on every batch.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.cache import GIB, KEY_BYTES, digest
from vitrail.errors import brief
from vitrail.objective.distill import TeacherFn

logger = logging.getLogger(__name__)


class CachedTeacher:
    """A teacher whose logits take at most `limit_gb` of disk."""

    def __init__(
        self, teacher: TeacherFn, path: Path, *, num_classes: int, limit_gb: float, ready: Callable[[], bool]
    ) -> None:
        """Before `ready`, nothing is cached."""
        self.teacher, self.path, self.ready = teacher, path, ready
        self.model = getattr(teacher, "model", None)
        fields: list[Any] = [("key", f"V{KEY_BYTES}"), ("batch", f"V{KEY_BYTES}"), ("logits", "<f4", (num_classes,))]
        self.record = np.dtype([*fields, ("checksum", "<u4")])
        self.max_records = int(limit_gb * GIB) // self.record.itemsize
        self.rows: dict[bytes, int] | None = None

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def __call__(self, image: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B K"]:
        """The teacher's logits for images in the student's normalisation."""
        if not self.ready():
            return self.teacher(image)
        if self.rows is None:
            self.rows = self._index()
        keys = [digest(each) for each in image.float().cpu().numpy()]
        batch = digest(b"".join(keys))
        logits = np.empty((len(keys), *self.record["logits"].shape), np.float32)
        with self.path.open("r+b", buffering=0) as file:
            records = [self._read(file, self.rows.get(key)) for key in keys]
            passed = [row for row, each in enumerate(records) if each is None or each["batch"].tobytes() == batch]
            for row in set(range(len(keys))).difference(passed):
                logits[row] = records[row]["logits"]
            if passed:
                logits[passed] = self.teacher(image[passed]).float().cpu().numpy()
                self._add(file, self.rows, {keys[row]: logits[row] for row in passed}, batch)
        return torch.from_numpy(logits).to(image.device)

    def __deepcopy__(self, memo: dict[int, Any]) -> CachedTeacher:
        """A copy of a student has the same teacher."""
        return self

    def _index(self) -> dict[bytes, int]:
        """The place of each record of the file, up to the first damaged one; what follows that is cut off."""
        self.path.touch()
        num = min(self.path.stat().st_size // self.record.itemsize, self.max_records)
        records = np.memmap(self.path, self.record, "r", shape=(num,)) if num else np.zeros(0, self.record)
        intact = [record["checksum"] == _checksum(record) for record in records]
        num = intact.index(False) if False in intact else num
        os.truncate(self.path, num * self.record.itemsize)
        return {record["key"].tobytes(): row for row, record in enumerate(records[:num])}

    def _read(self, file: BinaryIO, row: int | None) -> Any:
        """A record, or None."""
        if row is None:
            return None
        file.seek(row * self.record.itemsize)
        return np.frombuffer(file.read(self.record.itemsize), self.record)[0]

    def _add(
        self, file: BinaryIO, rows: dict[bytes, int], logits: dict[bytes, NDArray[np.float32]], batch: bytes
    ) -> None:
        """Store the new ones among these logits, as many as the limit allows; none at all if the disk is full."""
        file.seek(len(rows) * self.record.itemsize)
        for key, each in logits.items():
            if key in rows or len(rows) >= self.max_records:
                continue
            record = np.array((key, batch, each, 0), self.record)
            record["checksum"] = _checksum(record)
            try:
                whole = file.write(record.tobytes()) == self.record.itemsize
                reason = "the disk is full"
            except OSError as error:
                whole, reason = False, brief(error)
            if not whole:
                file.truncate(0)
                rows.clear()
                self.max_records = 0
                logger.warning("the teacher's logits cannot be cached, so it runs on every batch: %s", reason)
                return
            rows[key] = len(rows)


def _checksum(record: Any) -> int:
    """The checksum of all fields but the last, which is this."""
    return zlib.crc32(record.tobytes()[:-4])
