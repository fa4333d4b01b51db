"""Draw the paper's figures for a model."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from vitrail.data.find import open_data
from vitrail.data.image_files import as_table, find_images
from vitrail.data.table import Table
from vitrail.engine.exported import ExportedModel
from vitrail.errors import DataError, InspectionError
from vitrail.inspection.adopt import exported_error
from vitrail.inspection.figures import write_figures
from vitrail.inspection.sample import sample_evenly
from vitrail.run.open import open_model
from vitrail.run.predictor import require_classification

NUM_IMAGES = 128


def figures(
    model: str | Path,
    data: str | Path | None = None,
    *,
    weights: str | Path | None = None,
    out: str | Path = "figures",
    names: Sequence[str] | None = None,
    num_images: int = NUM_IMAGES,
    data_dir: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Path]:
    """Draw the figures for a model into the folder `out`; those that need images use a sample of `data`."""
    network = open_model(model, weights)
    if isinstance(network, ExportedModel):
        raise exported_error(network)
    require_classification(network, "vitrail figures")
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InspectionError(f"{folder} is not a folder.", got="a file.", hint="another --out.")
    sample = None
    if data is not None:
        sample = sample_evenly(_open_images(data, data_dir), num_images, network.preprocess)
    return write_figures(network, sample, folder, names=names, progress=progress)


def _open_images(data: str | Path, data_dir: str | Path | None) -> Table:
    """Open images with labels, or without: a single file, or a folder that has no class folders."""
    try:
        source = open_data(data, data_dir=data_dir)
    except DataError:
        try:
            return as_table(list(find_images([os.fspath(data)])), str(data))
        except DataError:
            pass
        raise
    split = next((name for name in ("test", "val") if name in source.split_names), None)
    source = source if split is None else source.split(split)
    if not isinstance(source, Table):
        raise DataError("figures need random access to the images.", got="shards.", hint="a folder, zip or table.")
    return source
