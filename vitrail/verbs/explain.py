"""Why does a model say so?"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from vitrail.data.image_files import find_images
from vitrail.errors import InspectionError
from vitrail.files import replacing, write_text
from vitrail.inspection.adopt import adopt
from vitrail.inspection.drawing import save_figure
from vitrail.inspection.explanation import TOP
from vitrail.inspection.explanation import explain as explain_one
from vitrail.run.open import open_model

DOTS = 160  # an inch, of the still picture


class Explained(NamedTuple):
    """The files of one picture, and what the model says to it."""

    image: str
    page: Path
    still: Path
    classes: tuple[tuple[str, float], ...]
    """The explained classes and their probabilities."""


def explain(
    model: str | Path,
    images: Sequence[str | Path],
    *,
    weights: str | Path | None = None,
    out: str | Path = "explained",
    classes: Sequence[str | int] | None = None,
    methods: Sequence[str] | None = None,
    top: int = TOP,
    progress: Callable[[int, int], None] | None = None,
) -> list[Explained]:
    """Write a page and a still picture for each image into the folder `out`.

    `images` are files, folders, zips or patterns. The rest is told by `vitrail.explain`.
    """
    network = adopt(open_model(model, weights))
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InspectionError(f"{folder} is no folder.", got="a file.", hint="another --out.")
    pictures = list(find_images([os.fspath(image) for image in images]))
    for picture in pictures:  # what is wrong with any is told before anything is written
        network.preprocess.decode(picture.content(), name=picture.name)
    written: list[Explained] = []
    for picture in pictures:
        found = explain_one(network, picture.content(), classes=classes, methods=methods, top=top)
        found = replace(found, name=Path(picture.name).name)
        folder.mkdir(parents=True, exist_ok=True)
        page = _free_name(folder, Path(picture.name).stem, {each.page for each in written})
        still = page.with_suffix(".png")
        write_text(found.page(), page, InspectionError)
        with replacing(still, InspectionError) as part:
            save_figure(found.figure(), part, "png", DOTS)
        told = tuple(zip(found.labels, found.probabilities, strict=True))
        written.append(Explained(picture.name, page, still, told))
        if progress is not None:
            progress(len(written), len(pictures))
    return written


def _free_name(folder: Path, stem: str, taken: set[Path]) -> Path:
    """A name for the page that no other picture of this call has."""
    page, number = folder / f"{stem}.explained.html", 1
    while page in taken:
        number += 1
        page = folder / f"{stem}-{number}.explained.html"
    return page
