"""The pages of `vitrail tokens` in a real browser."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser

from tests.browser.pages import opened
from vitrail.verbs.tokens import tokens

SIZES = [(390, "dark"), (1200, "light")]


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_a_text_and_its_ids(chromium: Browser, tmp_path: Path, width: int, scheme: str) -> None:
    text = "the <b>goat</b>\n🐐 " + "a" * 200
    found = tokens(text, tokenizer="characters", out=tmp_path / "page.html")
    page, said = opened(chromium, tmp_path / "page.html", width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator(".text").text_content() == text.replace("\n", "↵\n")
    colours = page.locator(".text span").evaluate_all("(all) => all.map((each) => getComputedStyle(each).background)")
    assert all(first != second for first, second in pairwise(colours))
    assert not page.locator(".ids").is_visible()
    page.get_by_label("Token ids").check()
    assert not page.locator(".text").is_visible()
    assert page.inner_text(".ids") == str([token.id for token in found.tokens])
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert said == []
    page.close()


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_an_image_in_patches(chromium: Browser, tmp_path: Path, width: int, scheme: str) -> None:
    """Each patch shows its own part of the image: here, of its own colour."""
    colours = np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(colours.repeat(16, axis=0).repeat(16, axis=1)).save(tmp_path / "image.png")
    tokens(tmp_path / "image.png", model="vit_mu_patch16_64", out=tmp_path / "page.html")
    page, said = opened(chromium, tmp_path / "page.html", width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    cells = page.locator(".grid span")
    assert cells.all_inner_texts() == [str(number) for number in range(1, 17)]
    cells.evaluate_all("(all) => all.forEach((each) => { each.textContent = '' })")  # nothing over the colours
    for number, colour in enumerate(colours.reshape(-1, 3)):
        (tmp_path / "cell.png").write_bytes(cells.nth(number).screenshot())
        pixels = np.asarray(Image.open(tmp_path / "cell.png").convert("RGB")).astype(int)
        rows, columns = pixels.shape[:2]
        assert np.abs(pixels[rows // 2, columns // 2] - colour).max() <= 12, number
    assert said == []
    page.close()
