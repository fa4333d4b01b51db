"""Explain predictions: a page and a figure for each image."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from vitrail.data.image_files import find_images
from vitrail.errors import InspectionError
from vitrail.files import atomic_write, write_text
from vitrail.inspection.adopt import adopt
from vitrail.inspection.drawing import save_figure
from vitrail.inspection.explanation import TOP
from vitrail.inspection.explanation import explain as explain_one
from vitrail.run.open import open_model

DPI = 160


class ExplainedImage(NamedTuple):
    """The prediction for one image and the files that explain it."""

    image: str
    page: Path
    still: Path
    classes: tuple[tuple[str, float], ...]
    """The explained classes and their probabilities; for regression, the predicted number."""
    summary: str
    """The prediction in words."""


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
) -> list[ExplainedImage]:
    """Write a page and a figure for each image into the folder `out`.

    `images` are files, folders, zips or patterns. For `classes`, `methods` and `top` see `vitrail.explain`.
    """
    network = adopt(open_model(model, weights))
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InspectionError(f"{folder} is not a folder.", got="a file.", hint="another --out.")
    items = list(find_images([os.fspath(image) for image in images]))
    for item in items:  # a bad image fails before anything is written
        network.preprocess.decode(item.content(), name=item.name)
    written: list[ExplainedImage] = []
    for item in items:
        explanation = explain_one(network, item.content(), classes=classes, methods=methods, top=top)
        explanation = replace(explanation, name=Path(item.name).name)
        folder.mkdir(parents=True, exist_ok=True)
        page = _unique_page(folder, Path(item.name).stem, {each.page for each in written})
        still = page.with_suffix(".png")
        write_text(explanation.page(), page, InspectionError)
        with atomic_write(still, InspectionError) as part:
            save_figure(explanation.figure(), part, "png", DPI)
        explained = tuple(zip(explanation.labels, explanation.probabilities, strict=True))
        label, score = explanation.prediction
        summary = f"{label}, {explanation.score_text(score)}"
        written.append(ExplainedImage(item.name, page, still, explained, summary))
        if progress is not None:
            progress(len(written), len(items))
    return written


def _unique_page(folder: Path, stem: str, taken: set[Path]) -> Path:
    """A path for the page that no other image of this call has."""
    page, number = folder / f"{stem}.explained.html", 1
    while page in taken:
        number += 1
        page = folder / f"{stem}-{number}.explained.html"
    return page
