"""Opens images whose labels do not matter: of any source, or simply all that are below a folder or in a zip."""

from __future__ import annotations

from pathlib import Path

from vitrail.data.find import open_data
from vitrail.data.image_files import as_table, find_images
from vitrail.data.table import Source
from vitrail.errors import DataError


def open_unlabelled(data: str | Path, *, data_dir: str | Path | None = None, target: str | None = None) -> Source:
    """Open data as `open_data` does; images without class folders are one class without a name."""
    if target is not None:
        raise DataError("--target names a number to predict.", got=f"--target {target}.", hint="the command without.")
    try:
        return open_data(data, data_dir=data_dir)
    except DataError:
        if not Path(data).exists():
            raise
        images = list(find_images([str(data)])) if Path(data).is_dir() or Path(data).suffix.lower() == ".zip" else []
        if not images:
            raise
        return as_table(images, str(data), root=Path(data))
