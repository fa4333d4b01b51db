"""Opens images whose labels do not matter: of any source, or simply all that are below a folder or in a zip."""

from __future__ import annotations

from pathlib import Path

from vitrail.data.find import open_data
from vitrail.data.image_files import as_table, find_images, folder_table
from vitrail.data.table import Source
from vitrail.errors import DataError


def open_unlabelled(data: str | Path, *, data_dir: str | Path | None = None, target: str | None = None) -> Source:
    """Open data as `open_data` does; images without class folders are one class without a name."""
    if target is not None:
        raise DataError("--target names a number to predict.", got=f"--target {target}.", hint="the command without.")
    try:
        return open_data(data, data_dir=data_dir)
    except DataError as error:
        problem = error.with_traceback(None)  # whose frames hold all names
    path = Path(data)
    if path.is_dir():
        return folder_table(path)
    if path.suffix.lower() != ".zip" or not path.exists():
        raise problem
    return as_table(list(find_images([str(path)])), str(path), root=path)
