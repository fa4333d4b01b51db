"""The contact sheet in a browser: wide and narrow, light and dark, without console messages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser

from tests.browser.pages import opened
from tests.contract.damage import DAMAGES, damage, encoded, photo
from vitrail import check


@pytest.fixture(scope="module")
def sheet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sheet")
    random = np.random.default_rng(0)
    for number in range(40):
        path = folder / "data" / ("train", "val")[number % 2] / "a class with a long name" / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(photo(random)))
    train, val = (folder / "data" / split / "a class with a long name" for split in ("train", "val"))
    (val / "leak <b>.jpg").write_bytes((train / "036.jpg").read_bytes())
    for number, way in enumerate(DAMAGES):
        damage(train / f"{2 * number:03d}.jpg", way)
    check(folder / "data", sheet=folder / "sheet.html")
    return folder / "sheet.html"


@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_sheet_in_a_browser(chromium: Browser, sheet: Path, width: int, scheme: str) -> None:
    page, said = opened(chromium, sheet, width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("[...document.images].every(image => image.naturalWidth > 0)")
    leak = page.locator("#leak li")
    assert leak.count() == 1
    assert leak.locator("img").count() == 2
    assert "leak <b>.jpg" in leak.inner_text()
    page.get_by_role("link", name="truncated").click()
    assert page.url.endswith("#truncated")
    assert said == []
    page.close()
