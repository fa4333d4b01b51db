"""A teacher's answers to images that come again: each image and augmentation is passed through the teacher once.

An image is known by the hash of its pixels. With one unknown image in it, the whole batch is passed through: the last
bits of an answer depend on the other images of a batch, and a resumed run passes the same batches. It finds the answers
of before in a file, of which each record has a checksum.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.cache import GIB, KEY_BYTES, digest
from vitrail.objective.distill import TeacherFn


class RememberedTeacher:
    """A teacher that is asked once about each image; its answers take at most `limit_gb` of disk."""

    def __init__(
        self, teacher: TeacherFn, path: Path, *, num_classes: int, limit_gb: float, ready: Callable[[], bool]
    ) -> None:
        """Before `ready`, nothing is remembered."""
        self.teacher, self.path, self.ready = teacher, path, ready
        self.record = np.dtype([("key", f"V{KEY_BYTES}"), ("logits", "<f4", (num_classes,)), ("checksum", "<u4")])
        self.max_records = int(limit_gb * GIB) // self.record.itemsize
        self.file: int | None = None
        self.rows: dict[bytes, int] = {}

    @torch.compiler.disable
    @torch.no_grad()
    def __call__(self, image: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B K"]:
        """The teacher's logits for images in the student's normalisation."""
        if not self.ready():
            return self.teacher(image)
        self._open()
        keys = [digest(each) for each in image.float().cpu().numpy()]
        known = [row for row, key in enumerate(keys) if key in self.rows]
        if len(known) == len(keys):
            answers = np.empty((len(keys), *self.record["logits"].shape), np.float32)
        else:
            answers = self.teacher(image).float().cpu().numpy()
            self._add(keys, answers)
        for row in known:
            answers[row] = self._read(keys[row])
        return torch.from_numpy(answers).to(image.device)

    def delete(self) -> None:
        """Delete the file, once the student is trained."""
        if self.file is not None:
            os.close(self.file)
            self.file = None
        self.path.unlink(missing_ok=True)

    def __deepcopy__(self, memo: dict[int, Any]) -> RememberedTeacher:
        """A copy of a student has the same teacher."""
        return self

    def _open(self) -> None:
        """Open the file and index its records, up to the first damaged one; what follows that is cut off."""
        if self.file is not None:
            return
        self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        num = min(os.fstat(self.file).st_size // self.record.itemsize, self.max_records)
        records = np.memmap(self.path, self.record, "r", shape=(num,)) if num else np.zeros(0, self.record)
        intact = [record["checksum"] == _checksum(record["key"].tobytes(), record["logits"]) for record in records]
        num = intact.index(False) if False in intact else num
        os.truncate(self.file, num * self.record.itemsize)
        self.rows = {record["key"].tobytes(): row for row, record in enumerate(records[:num])}

    def _read(self, key: bytes) -> NDArray[np.float32]:
        assert self.file is not None
        start = self.rows[key] * self.record.itemsize
        return np.frombuffer(os.pread(self.file, self.record.itemsize, start), self.record)[0]["logits"]

    def _add(self, keys: list[bytes], logits: NDArray[np.float32]) -> None:
        """Store the new ones among these answers, as many as the limit allows."""
        assert self.file is not None
        first, records = len(self.rows), []
        for key, each in zip(keys, logits, strict=True):
            if key not in self.rows and len(self.rows) < self.max_records:
                self.rows[key] = len(self.rows)
                records.append((key, each, _checksum(key, each)))
        os.pwrite(self.file, np.array(records, self.record).tobytes(), first * self.record.itemsize)


def _checksum(key: bytes, logits: NDArray[np.float32]) -> int:
    return zlib.crc32(np.ascontiguousarray(logits).data, zlib.crc32(key))
