"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vitrail.errors import VitrailError, brief


@contextmanager
def replacing(path: Path, kind: type[VitrailError]) -> Iterator[Path]:
    """A file beside the path, which takes its place once all of it is on the disk; failure is of the given kind."""
    if not path.parent.is_dir():
        raise kind(f"there is no folder {path.parent}.", got=f"{path}.", hint="make it first.")
    part = None
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
        os.close(handle)
        part = Path(name)
        yield part
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.chmod(0o666 & ~_umask())
        part.replace(path)
    except (OSError, RuntimeError) as error:
        raise kind(f"{path} cannot be written.", got=brief(error), hint="another place.") from None
    finally:
        if part is not None:
            part.unlink(missing_ok=True)


def write_text(text: str, path: Path, kind: type[VitrailError]) -> None:
    """A file of text; whole, or not at all."""
    with replacing(path, kind) as part:
        part.write_text(text, encoding="utf-8", errors="replace")


def sync_folder(folder: Path) -> None:
    """Bring a folder's entries to the disk, so that a rename in it outlasts a loss of power."""
    if os.name != "posix":  # elsewhere a folder cannot be opened, and the system does it by itself
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
