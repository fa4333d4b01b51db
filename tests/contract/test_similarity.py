"""Token similarity: what is known in advance is found, nearness alone is no likeness, and the outlines are sound."""

from __future__ import annotations

import zipfile
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw

from tests.contract.small_models import random_image, small
from vitrail import create_model, explain
from vitrail.errors import InspectionError, ShapeError, SpecError
from vitrail.inspection.distance import cell_distances
from vitrail.inspection.outline import (
    Outline,
    cell_of,
    choose_images,
    compare_eye_and_ear,
    measure_outlines,
    rasterise,
    read_outlines,
)
from vitrail.inspection.similarity import compare_parts, equidistant, trace_tokens

WHOLE = (0.0, 0.0, 1.0, 1.0)


def outlines_path() -> Path:
    return Path(str(files("vitrail.benchmark"))) / "claim" / "outlines.json"


def blob(rows: int = 6, columns: int = 9) -> np.ndarray:
    mask = np.zeros((rows, columns), dtype=bool)
    mask[1:4, 2:6] = True
    return mask


def test_two_kinds_of_tokens_are_separated() -> None:
    mask = blob()
    same = (mask.flatten()[:, None] == mask.flatten()).astype(np.float32)
    assert compare_parts(same, mask) == (1.0, 0.0, 1.0, 1.0, 1.0)
    assert compare_parts(-same, mask) == (-1.0, 0.0, -1.0, 0.0, 0.0)


def test_nearness_alone_is_no_likeness() -> None:
    """Near patches are alike in any photo: without equal distances, any compact outline would seem to be known."""
    mask = blob()
    near = (-cell_distances(mask.shape, (1.0, 1.0))).exp().numpy().astype(np.float32)
    parts = compare_parts(near, mask)
    assert parts.inside > parts.across
    assert parts.alike > 0.7
    assert parts.matched == 0.5


def test_triples_are_equally_far_apart() -> None:
    mask = blob()
    first, second, third = equidistant(mask)
    distances = cell_distances(mask.shape, (1.0, 1.0)).numpy()
    np.testing.assert_allclose(distances[first, second], distances[first, third])
    flat = mask.flatten()
    assert flat[first].all()
    assert flat[second].all()
    assert not flat[third].any()
    assert (first != second).all()


@pytest.mark.parametrize("kind", ["registers", "160 x 288 px", "hybrid", "axial"])
def test_an_explanation_has_the_similarity_of_every_block(kind: str) -> None:
    found = explain(small(kind), random_image(), methods=["rollout"])
    layers = list(found.similarity())
    with torch.no_grad():
        tokens = found.model.tokenize(found.inputs)
        for number, similarity in enumerate(layers):
            if number:
                tokens = found.model.blocks[number - 1](tokens)
            expected = F.cosine_similarity(tokens.cells[0][:, None], tokens.cells[0][None], dim=-1)
            np.testing.assert_allclose(similarity, expected.numpy(), atol=1e-5)
    assert len(layers) == 1 + len(found.model.blocks)


@pytest.mark.parametrize("name", ["resnet26_sasa_32", "perceiver_mu_32"])
def test_a_model_without_a_grid_of_tokens_is_rejected(name: str) -> None:
    model = create_model(name, num_classes=3, **({"layers": (1, 1)} if "resnet" in name else {}))
    with pytest.raises(InspectionError, match=rf"no grid of tokens in each block[\s\S]*a {type(model).__name__}\."):
        trace_tokens(model, torch.zeros(1, 3, 32, 32))
    with pytest.raises(InspectionError, match="no grid of tokens in each block"):
        measure_outlines(model, {}, {})


def test_outlines_that_decide_nothing_are_rejected() -> None:
    similarity = np.eye(54, dtype=np.float32)
    with pytest.raises(InspectionError, match=r"cells inside and outside[\s\S]*54 cells inside, 0 outside"):
        compare_parts(similarity, np.ones((6, 9), dtype=bool))
    with pytest.raises(ShapeError, match="a Boolean for each cell"):
        compare_parts(similarity, np.ones((6, 6), dtype=bool))
    with pytest.raises(SpecError, match="outline"):
        Outline.parse({"outline": [[0, 0], [1, 1]]})
    outline = Outline.parse({"outline": [[0, 0], [1, 0], [1, 1]]})
    with pytest.raises(InspectionError, match=r"a\.png has an outline"):
        measure_outlines(small("class token"), {}, {"a.png": outline})


def test_outlines_fall_on_the_cells_that_the_model_sees() -> None:
    outline = Outline.parse({"outline": [[0.25, 0.5], [0.75, 0.5], [0.75, 1], [0.25, 1]]})
    np.testing.assert_array_equal(rasterise(outline, WHOLE, (2, 4)), [[0, 0, 0, 0], [0, 1, 1, 0]])
    right_half = (0.0, 0.5, 1.0, 1.0)
    np.testing.assert_array_equal(rasterise(outline, right_half, (2, 4)), [[0, 0, 0, 0], [1, 1, 0, 0]])
    assert cell_of((0.8, 0.6), WHOLE, (2, 4)) == 7
    assert cell_of((0.8, 0.6), right_half, (2, 4)) == 6
    assert cell_of((0.4, 0.6), right_half, (2, 4)) is None
    assert cell_of(None, WHOLE, (2, 4)) is None


def test_the_eye_is_compared_with_background_as_far_away_as_the_ear() -> None:
    mask = np.array([[False, False, True, True, False, False]])
    similarity = np.zeros((6, 6), dtype=np.float32)
    similarity[2] = [0.1, 0.4, 1.0, 0.5, 0.6, 0.1]  # of the eye
    assert compare_eye_and_ear(similarity, mask, 2, 3) == {"eye_ear": 0.75, "eye_ear_matched": 1.0}
    assert compare_eye_and_ear(similarity, mask, 2, 2) == {"eye_ear": None, "eye_ear_matched": None}
    assert compare_eye_and_ear(similarity, mask, None, 3) == {"eye_ear": None, "eye_ear_matched": None}


def test_an_outlined_thing_is_found_and_the_outlines_of_others_are_not() -> None:
    """A thing of one colour on another: its patches have equal tokens, whatever the weights."""
    model = create_model("vit_mu_patch16_224", num_classes=3, position="none").eval()
    corners = {"left": (0.15, 0.2, 0.5, 0.6), "right": (0.55, 0.45, 0.85, 0.85)}
    images, outlines = {}, {}
    for name, (left, top, right, bottom) in corners.items():
        images[name] = Image.new("RGB", (300, 300), (200, 60, 40))
        box = [round(300 * side) for side in corners[name]]
        ImageDraw.Draw(images[name]).rectangle(box, fill=(30, 80, 220))
        square = [[left, top], [right, top], [right, bottom], [left, bottom]]
        eye, ear = [left + 0.08, top + 0.08], [right - 0.08, bottom - 0.08]
        outlines[name] = Outline.parse({"outline": square, "eye": eye, "ear": ear})
    rows = measure_outlines(model, images, outlines)
    assert [(row["image"], row["block"]) for row in rows] == [(name, block) for name in corners for block in range(3)]
    for row in rows:
        assert row["inside"] > row["across"]
        assert row["matched"] > 0.9
        assert row["dot"] > 0.5
        assert row["control"] < row["matched"] - 0.2  # not 0.5: of what lies outside it, a part is the thing itself
        assert row["eye_ear"] > 0.9


def test_the_outlines_drawn_by_hand_are_sound(data_dir: Path) -> None:
    outlines = read_outlines(outlines_path())
    with zipfile.ZipFile(data_dir / "oxford_pets" / "pets37_short224_40percls.zip") as archive:
        names = [name for name in archive.namelist() if name.startswith("test/")]
    assert list(outlines) == choose_images(names, 20)
    assert len({name.split("/")[1] for name in outlines}) == 20
    for name, outline in outlines.items():
        mask = rasterise(outline, WHOLE, (100, 100))
        assert 0.1 < mask.mean() < 0.95, name
        for point in (outline.eye, outline.ear):
            cell = cell_of(point, WHOLE, (100, 100))
            assert cell is None or mask.flatten()[cell], name
    assert sum(outline.eye is not None and outline.ear is not None for outline in outlines.values()) >= 15
