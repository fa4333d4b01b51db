"""With real weights and photos, the heatmaps lie on the dog."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail import create_model, explain
from vitrail.inspection.explanation import Explanation
from vitrail.verbs.explain import explain as explain_files

BOXES = {"dog1": (212, 166, 408, 388), "dog2": (32, 137, 458, 495)}  # left, top, right, bottom, annotated by hand
BREEDS = {"dog1": "Pembroke", "dog2": "German shepherd"}


def fraction_inside(found: Explanation, heatmap: np.ndarray, box: tuple[int, int, int, int]) -> float:
    """The fraction of a heatmap's mass inside a box of the image."""
    rows, columns = found.image.shape[:2]
    top, left, bottom, right = found.window
    frame = [round(left * columns), round(top * rows), round(right * columns), round(bottom * rows)]
    size = (frame[2] - frame[0], frame[3] - frame[1])
    fine = np.asarray(Image.fromarray(heatmap.astype(np.float32)).resize(size, Image.Resampling.NEAREST))
    whole = np.zeros((rows, columns), dtype=np.float64)
    whole[frame[1] : frame[3], frame[0] : frame[2]] = fine
    return whole[box[1] : box[3], box[0] : box[2]].sum() / whole.sum()


@pytest.mark.parametrize("name", BOXES)
def test_the_evidence_for_the_dog_lies_on_the_dog(name: str, data_dir: Path, deit_tiny: Path) -> None:
    model = create_model("deit_tiny_patch16_224", weights=deit_tiny)
    found = explain(model, data_dir / "photos" / f"{name}.jpg", top=2)
    assert BREEDS[name].casefold() in found.labels[0].casefold()
    inside = fraction_inside(found, found.heatmaps["relevance"][0], BOXES[name])
    assert inside >= 0.6, f"{inside:.1%}"
    assert inside > fraction_inside(found, np.ones((14, 14)), BOXES[name]) + 0.1


def test_the_verb_writes_a_page_and_a_figure(data_dir: Path, deit_tiny: Path, tmp_path: Path) -> None:
    photo = data_dir / "photos" / "dog1.jpg"
    (tmp_path / "folder").mkdir()
    shutil.copy(photo, tmp_path / "folder")
    files = explain_files(deit_tiny, [photo, tmp_path / "folder"], out=tmp_path / "out", top=1)
    assert [path.name for each in files for path in (each.page, each.still)] == [
        *("dog1.explained.html", "dog1.explained.png"),
        *("dog1-2.explained.html", "dog1-2.explained.png"),
    ]
    _, page, still, classes, _ = files[0]
    assert [round(probability, 2) for _, probability in classes] == [0.73]
    assert page.stat().st_size < 3_000_000
    assert "http" not in page.read_text().replace("http-equiv", "")
    with Image.open(still) as image:
        assert image.width > 800
