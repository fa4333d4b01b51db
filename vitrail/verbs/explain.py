"""Why does a model say so?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from vitrail.errors import InspectionError
from vitrail.files import replacing, write_text
from vitrail.inspection.adopt import adopt
from vitrail.inspection.drawn import save_figure
from vitrail.inspection.explanation import TOP, read_picture
from vitrail.inspection.explanation import explain as explain_one
from vitrail.run.opened import open_model

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
    class_name: str | int | None = None,
    methods: Sequence[str] | None = None,
    top: int = TOP,
    progress: Callable[[int, int], None] | None = None,
) -> list[Explained]:
    """Write a page and a still picture for each image into the folder `out`."""
    network = adopt(open_model(model, weights))
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InspectionError(f"{folder} is no folder.", got="a file.", hint="another --out.")
    for image in images:  # before anything is written
        read_picture(image, network.preprocess)
    written: list[Explained] = []
    for image in images:
        found = explain_one(network, image, class_name=class_name, methods=methods, top=top)
        folder.mkdir(parents=True, exist_ok=True)
        page = _free_name(folder, Path(image).stem, {each.page for each in written})
        still = page.with_suffix(".png")
        write_text(found.page(), page, InspectionError)
        with replacing(still, InspectionError) as part:
            save_figure(found.figure(), part, "png", DOTS)
        classes = tuple(zip(found.labels, found.probabilities, strict=True))
        written.append(Explained(str(image), page, still, classes))
        if progress is not None:
            progress(len(written), len(images))
    return written


def _free_name(folder: Path, stem: str, taken: set[Path]) -> Path:
    """A name for the page that no other picture of this call has."""
    page, number = folder / f"{stem}.explained.html", 1
    while page in taken:
        number += 1
        page = folder / f"{stem}-{number}.explained.html"
    return page
