"""Outlines of animals, drawn by hand, and whether a model's tokens know them: deck 002, z_eye z_ear > z_eye z_bg."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from pydantic import Field
from torch import Tensor

from vitrail.contract import Classifier
from vitrail.errors import InspectionError
from vitrail.inspection.distance import cell_distances
from vitrail.inspection.explanation import ImageInput, read_image
from vitrail.inspection.similarity import (
    Mask,
    Matrix,
    compare_parts,
    equidistant,
    fraction_alike,
    iter_similarity,
    require_tokens,
    trace_tokens,
)
from vitrail.spec import Probability, Spec

Point = tuple[Probability, Probability]
Window = tuple[float, float, float, float]
SUBPIXELS = 16  # a side of a cell, to measure how much of it an outline covers
NEAR = 0.5  # cells: two patches are equally far from a third if their distances differ by at most this


class Outline(Spec):
    """The outline of a thing; all points are x and y as fractions of the image's width and height."""

    outline: Annotated[tuple[Point, ...], Field(min_length=3)]
    eye: Point | None = None
    ear: Point | None = None


class Outlines(Spec):
    """The outlines of a file, by the names of their images."""

    about: str
    images: dict[str, Outline]


def read_outlines(path: str | Path) -> dict[str, Outline]:
    """The outlines of a JSON file, by the names of their images."""
    return dict(Outlines.parse_yaml(Path(path).read_text(encoding="utf-8")).images)


def choose_images(names: Iterable[str], num: int, seed: int = 0) -> list[str]:
    """Draw images of `num` different classes, one of each, from names such as `test/pug/pug_25.jpg`."""
    by_class: dict[str, list[str]] = {}
    for name in sorted(names):
        by_class.setdefault(name.split("/")[-2], []).append(name)
    rng = random.Random(seed)
    return [rng.choice(by_class[label]) for label in sorted(rng.sample(sorted(by_class), num))]


def rasterise(outline: Outline, window: Window, grid: tuple[int, ...]) -> Mask:
    """The cells of a model's grid of which at least half lies inside an outline; the grid covers `window` only."""
    rows, columns = grid
    canvas = Image.new("L", (columns * SUBPIXELS, rows * SUBPIXELS))
    points = [_place(point, window) for point in outline.outline]
    ImageDraw.Draw(canvas).polygon([(x * canvas.width, y * canvas.height) for x, y in points], fill=1)
    covered = np.asarray(canvas).reshape(rows, SUBPIXELS, columns, SUBPIXELS).mean(axis=(1, 3))
    return np.asarray(covered >= 0.5)


def cell_of(point: Point | None, window: Window, grid: tuple[int, ...]) -> int | None:
    """The cell that a point lies in; None if it is outside of what the model sees."""
    x, y = (-1.0, -1.0) if point is None else _place(point, window)
    rows, columns = grid
    return int(y * rows) * columns + int(x * columns) if 0 <= x < 1 and 0 <= y < 1 else None


def measure_outlines(
    model: Classifier, images: Mapping[str, ImageInput], outlines: Mapping[str, Outline]
) -> list[dict[str, Any]]:
    """Measure whether the parts of each outlined thing are alike: a row for each image and block, 0 before the first.

    Beside the fields of `similarity.Parts`: `dot`, which is `matched` for dot products instead of cosines; `control`,
    which is `matched` with the outlines of the other images instead of its own (things are in the middle of photos);
    `eye_ear`, how much of the background is less like the eye than the ear is, and `eye_ear_matched`, how much of that
    which is as far from the eye as the ear. Both are None where the model does not see both, or sees them in one patch.
    """
    if missing := sorted(set(outlines) - set(images)):
        raise InspectionError(
            f"{missing[0]} has an outline, but it is not among the images.", got=f"{len(images)} images."
        )
    model = require_tokens(model)
    grid = model.spec.layout.grid
    inputs, windows = {}, {}
    for name in outlines:
        _, full, pixels = read_image(images[name], model.preprocess)
        prepared = model.preprocess.normalise(model.preprocess.resize_and_crop(pixels)[None])
        inputs[name], windows[name] = prepared.to(next(model.parameters())), model.preprocess.window(*full.shape[:2])
    masks = {name: rasterise(outline, windows[name], grid) for name, outline in outlines.items()}
    triples = {name: equidistant(mask) for name, mask in masks.items()}
    rows = []
    for name, outline in outlines.items():
        eye, ear = (cell_of(point, windows[name], grid) for point in (outline.eye, outline.ear))
        for block, (similarity, dot) in enumerate(_matrices(model, inputs[name])):
            others = [fraction_alike(similarity, triples[other]) for other in outlines if other != name]
            rows.append(
                {
                    "image": name,
                    "block": block,
                    **compare_parts(similarity, masks[name])._asdict(),
                    "dot": fraction_alike(dot, triples[name]),
                    "control": float(np.mean(others)) if others else None,
                    **compare_eye_and_ear(similarity, masks[name], eye, ear),
                }
            )
    return rows


def compare_eye_and_ear(similarity: Matrix, mask: Mask, eye: int | None, ear: int | None) -> dict[str, float | None]:
    """How much of the background is less like the eye than the ear is: of all, and of that as far away as the ear."""
    if eye is None or ear is None or eye == ear:
        return {"eye_ear": None, "eye_ear_matched": None}
    distances = cell_distances(mask.shape, (1.0, 1.0))[eye].numpy()
    background = ~mask.flatten()
    as_far = background & (abs(distances - distances[ear]) <= NEAR)
    less_alike = similarity[eye] < similarity[eye, ear]
    return {
        "eye_ear": float(less_alike[background].mean()),
        "eye_ear_matched": float(less_alike[as_far].mean()) if as_far.any() else None,
    }


def _matrices(model: Classifier, inputs: Float[Tensor, "1 C Y X"]) -> Iterable[tuple[Matrix, NDArray[np.float32]]]:
    """Cosine similarities and dot products of any two patch tokens: before the first block, then after each."""
    traced = trace_tokens(model, inputs)
    for similarity, tokens in zip(iter_similarity(traced), traced.stages, strict=True):
        cells = tokens.cells[0].float()
        yield similarity[0].cpu().numpy(), torch.mm(cells, cells.T).cpu().numpy()


def _place(point: Point, window: Window) -> tuple[float, float]:
    """A point of the image as fractions of the window's sides."""
    (x, y), (top, left, bottom, right) = point, window
    return (x - left) / (right - left), (y - top) / (bottom - top)
