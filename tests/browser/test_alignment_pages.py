"""The report of aligned modalities and the page of a search in the browser: accessible, silent, never too wide."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from tests.browser.pages import opened
from tests.contract.aligned_tables import FAST, make_rows, write_rows
from vitrail.verbs.search import search
from vitrail.verbs.train import train

SERIOUS = {"serious", "critical"}
LONG = " that is described in rather more words than anybody would want to read in a narrow column"
PAGES = {
    "run/report.html": "of the nearest neighbours",
    "images.html": "Images nearest to",
    "words.html": "Texts nearest",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    rows = [{**row, "text": row["text"] + LONG * (number % 3 == 0)} for number, row in enumerate(make_rows(folder))]
    table = write_rows(folder / "data.csv", rows)
    train(table, recipe="align", model="vatt_mu", settings=[*FAST, "steps=4"], run=folder / "run")
    search(folder / "run", "a low tone", folder / "images", out=folder / "images.html")
    search(folder / "run", folder / "sounds/0.wav", table, modality="text", out=folder / "words.html")
    return folder


@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_accessible_at_any_width(chromium: Browser, home: Path, name: str, width: int, scheme: str) -> None:
    page, said = opened(chromium, home / name, width, scheme)
    assert PAGES[name] in page.locator("body").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    faults = [fault for fault in Axe().run(page).response["violations"] if fault["impact"] in SERIOUS]
    assert not faults, [(fault["id"], [node["html"] for node in fault["nodes"]][:3]) for fault in faults]
    for link in page.locator("nav a").all():
        assert page.locator(link.get_attribute("href") or "none").count() == 1
    assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
    assert said == []
    page.close()
