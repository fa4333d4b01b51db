"""Files that are written whole or not at all."""

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

NO_FOLDERS = (errno.EBADF, errno.EINVAL, errno.ENOTSUP)  # from file systems that cannot sync a folder
RANDOM = "????????"  # what tempfile ends a name with


@contextmanager
def replacing(path: Path, kind: type[VitrailError]) -> Iterator[Path]:
    """A path to write to, which takes the other's place once all of it is on the disk; failure is of the given kind."""
    if not path.parent.is_dir():
        raise kind(f"there is no folder {path.parent}.", got=f"{path}.", hint="make it first.")
    room = None
    try:
        # In a folder of its own, so that whatever a killed writer leaves behind has a name that `clean` knows.
        room = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        part = room / path.name
        yield part
        sync_file(part)
        part.chmod(0o666 & ~umask())
        part.replace(path)
        sync_folder(path.parent)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise kind(
            f"{path} cannot be written.", got=brief(error), hint="more room on the disk, or another place."
        ) from None
    finally:
        if room is not None:
            shutil.rmtree(room, ignore_errors=True)


def write_text(text: str, path: Path, kind: type[VitrailError]) -> None:
    """A file of text; whole, or not at all."""
    with replacing(path, kind) as part:
        part.write_text(text, encoding="utf-8", errors="replace")


def clean(folder: Path, names: Iterable[str]) -> None:
    """Take away what was left beside files of these names when `replacing` was killed."""
    for name in names:
        for left in folder.glob(f".{name}.{RANDOM}"):
            shutil.rmtree(left, ignore_errors=True)


def sync_file(path: Path) -> None:
    """Bring a file to the disk."""
    with path.open("rb") as written:
        os.fsync(written.fileno())


def sync_folder(folder: Path) -> None:
    """Bring a folder's entries to the disk, so that a rename in it outlasts a loss of power."""
    if os.name != "posix":  # elsewhere a folder cannot be opened, and the system does it by itself
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in NO_FOLDERS:
            raise
    finally:
        os.close(handle)


def umask() -> int:
    """The rights that new files do not get."""
    current = os.umask(0)
    os.umask(current)
    return current
