"""Atomic file writes: a file is written completely or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from vitrail.errors import VitrailError, brief

CANNOT_SYNC_FOLDERS = (errno.EBADF, errno.EINVAL, errno.ENOTSUP)  # from file systems without fsync for folders
RANDOM = "????????"  # the suffix of tempfile's names


@contextmanager
def atomic_write(path: Path, error_type: type[VitrailError]) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` once its content is synced to disk; raise `error_type` on failure."""
    if not path.parent.is_dir():
        raise error_type(f"there is no folder {path.parent}.", got=f"{path}.", hint="creating it first.")
    temporary_dir = None
    try:
        # In its own folder, so that `remove_leftovers` recognises by name whatever a killed writer leaves behind.
        temporary_dir = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        part = temporary_dir / path.name
        yield part
        sync_file(part)
        part.chmod(0o666 & ~get_umask(temporary_dir))
        part.replace(path)
        sync_folder(path.parent)
    except (OSError, SafetensorError) as error:
        raise error_type(
            f"{path} cannot be written.", got=brief(error), hint="freeing disk space, or another folder."
        ) from None
    finally:
        if temporary_dir is not None:
            shutil.rmtree(temporary_dir, ignore_errors=True)


def write_text(text: str, path: Path, error_type: type[VitrailError]) -> None:
    """Write a text file atomically."""
    with atomic_write(path, error_type) as part:
        part.write_text(text, encoding="utf-8", errors="replace")


def remove_leftovers(folder: Path, names: Iterable[str]) -> None:
    """Delete what killed calls of `atomic_write` left beside files of these names."""
    for name in names:
        for leftover in folder.glob(f".{name}.{RANDOM}"):
            shutil.rmtree(leftover, ignore_errors=True)


def sync_file(path: Path) -> None:
    """Flush a file to disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, so that a rename in it survives a power failure."""
    if os.name != "posix":  # elsewhere a folder cannot be opened, and the system syncs it automatically
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in CANNOT_SYNC_FOLDERS:
            raise
    finally:
        os.close(handle)


def get_umask(folder: Path) -> int:
    """Return the permission bits that new files do not get, as a new file in this folder shows.

    `os.umask` can only be read by changing it, for all threads: what they write meanwhile would be open to everybody.
    """
    probe = folder / ".umask"
    handle = os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o777)
    try:
        return 0o777 & ~os.fstat(handle).st_mode
    finally:
        os.close(handle)
        probe.unlink()
