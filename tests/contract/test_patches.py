"""`vitrail tokens` shows how models cut images into patches."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.contract.test_tokens_verb import call
from vitrail.errors import RunError
from vitrail.run.artefact import load
from vitrail.verbs.tokens import ImageTokens, tokens


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a <b>photo.png")
    return tmp_path / "a <b>photo.png"


@pytest.mark.parametrize(
    ("model", "grid", "patch", "prefix", "words"),
    [
        (None, (14, 14), (16, 16), ("class token",), "+ 1 class token = 197 tokens"),
        ("vit_base_patch16_gap_224", (14, 14), (16, 16), (), "16 x 16 pixels = 196 tokens"),
        ("deit_base_distilled_patch16_224", (14, 14), (16, 16), ("class token", "distillation token"), "= 198 tokens"),
        ("vit_mu_patch16_reg4_224", (14, 14), (16, 16), ("class token", *(f"register {n}" for n in range(1, 5))),
         "+ 1 class token + 4 registers = 201 tokens"),
        ("vit_base_patch32_384", (12, 12), (32, 32), ("class token",), "144 patches of 32 x 32 pixels"),
        ("vit_mu_r_s16_p8_224", (7, 7), (32, 32), ("class token",), "49 cells of 32 x 32 pixels"),
    ],
)  # fmt: skip
def test_an_image_is_cut_as_the_model_does(
    model: str | None, grid: tuple, patch: tuple, prefix: tuple, words: str, photo: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    found = tokens(photo, model=model)
    assert isinstance(found, ImageTokens)
    patches = found.patches
    assert (patches.grid, patches.patch, patches.prefix) == (grid, patch, prefix)
    assert patches.pixels.shape == (grid[0] * patch[0], grid[1] * patch[1], 3)
    options = [] if model is None else ["--model", model]
    assert call(monkeypatch, str(photo), *options) == 0
    out = capsys.readouterr().out
    assert words in out
    assert out.splitlines()[grid[0] - 1].split()[-1] == str(grid[0] * grid[1])
    assert call(monkeypatch, str(photo), *options, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["kind"], document["page"]) == ("image", None)
    assert (tuple(document["grid"]), tuple(document["patch"]), tuple(document["prefix"])) == (grid, patch, prefix)
    assert document["num_tokens"] == grid[0] * grid[1] + len(prefix)


def test_the_page_of_an_image(photo: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    tokens(photo, model="vit_mu_patch16_64", out=page)
    content = page.read_text()
    assert re.search("4 . 4 = 16 patches of 16 . 16 pixels [+] 1 class token[.]", content)
    assert re.findall(r'title="number (\d+)', content) == [str(number) for number in range(1, 17)]
    assert 'style="background-position:33.333% 100.000%" title="number 14: row 4, column 2"' in content
    assert "url(data:image/png;base64," in content
    assert "<b>photo" not in content


def test_a_run_cuts_as_its_model_does(photo: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(Path(__file__).with_name("runs_0_2.zip")) as archive:
        archive.extractall(tmp_path)
    spec = load(tmp_path / "finished").spec
    found = tokens(photo, run=tmp_path / "finished", out=tmp_path / "page.html")
    assert isinstance(found, ImageTokens)
    assert (found.patches.grid, found.patches.num_tokens) == (spec.layout.grid, spec.layout.num_tokens)
    assert found.patches.pixels.shape == (*spec.image_size, spec.channels)
    with pytest.raises(RunError, match="has no tokenizer"):
        tokens("goat", run=tmp_path / "finished")
