"""The reports of runs on text in the browser: accessible, silent, and no wider than the screen."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from tests.browser.pages import opened
from tests.contract.odd_texts import learn_text, write_texts
from tests.contract.small_texts import RECIPES

SERIOUS = {"serious", "critical"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_texts(tmp_path_factory.mktemp("text"))
    for recipe in RECIPES:
        learn_text(folder, recipe)
    return folder


@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_accessible_at_any_width(chromium: Browser, home: Path, recipe: str, width: int, scheme: str) -> None:
    page, said = opened(chromium, home / f"run <b> {recipe}" / "report.html", width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    faults = [fault for fault in Axe().run(page).response["violations"] if fault["impact"] in SERIOUS]
    assert not faults, [(fault["id"], [node["html"] for node in fault["nodes"]][:3]) for fault in faults]
    assert page.locator("nav a").count() > 5
    for link in page.locator("nav a").all():
        assert page.locator(link.get_attribute("href") or "none").count() == 1
    assert said == []
    page.close()
