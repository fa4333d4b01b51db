"""The report of a run and a comparison in the browser: tables sort, cells show images, and both are accessible."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from tests.browser.pages import opened
from tests.contract.colours import learn, write_colours
from vitrail import compare

SERIOUS = {"serious", "critical"}
MOST = 5_000_000  # bytes of a page


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("report")
    write_colours(folder / "data", {"train": 20, "val": 20, "test": 20}, swapped=10)
    learn(folder / "data", folder / "one run", "steps=20", folds=2)
    learn(folder / "data", folder / "another", "steps=30")
    compare([folder / "one run", folder / "another"], page=folder / "compare.html")
    return {"report": folder / "one run" / "report.html", "comparison": folder / "compare.html"}


@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["report", "comparison"])
def test_accessible_at_any_width(chromium: Browser, pages: dict[str, Path], name: str, width: int, scheme: str) -> None:
    assert pages[name].stat().st_size < MOST
    page, said = opened(chromium, pages[name], width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("[...document.images].every(image => image.naturalWidth > 0)")
    faults = [fault for fault in Axe().run(page).response["violations"] if fault["impact"] in SERIOUS]
    assert not faults, [(fault["id"], [node["html"] for node in fault["nodes"]][:3]) for fault in faults]
    assert said == []
    page.close()


def column(page: Page, number: int) -> list[str]:
    return page.locator(f"table.sortable >> nth=0 >> tbody tr td:nth-child({number})").all_inner_texts()


@pytest.mark.parametrize("name", ["report", "comparison"])
def test_tables_sort(chromium: Browser, pages: dict[str, Path], name: str) -> None:
    page, said = opened(chromium, pages[name], 1200, "light")
    number = 4 if name == "report" else 2  # recall, score
    title = page.locator("table.sortable >> nth=0 >> thead button").nth(number - 1)
    title.click()
    values = [float(text.rstrip("%")) for text in column(page, number)]
    assert len(values) > 1
    assert values == sorted(values, reverse=True)
    title.press("Enter")
    assert [float(text.rstrip("%")) for text in column(page, number)] == sorted(values)
    assert title.locator("xpath=..").get_attribute("aria-sort") == "ascending"
    page.locator("table.sortable >> nth=0 >> thead button").first.click()
    assert column(page, 1) == sorted(column(page, 1))
    assert said == []
    page.close()


def test_a_cell_shows_its_images(chromium: Browser, pages: dict[str, Path]) -> None:
    page, said = opened(chromium, pages["report"], 1200, "light")
    wrong = page.locator("#matrix td:not(.right) button").first
    count = int(wrong.inner_text())
    wrong.click()
    assert page.locator("#cell li").count() == count
    assert page.locator("#cell img").count() == count
    assert "predicted as" in page.locator("#cell p").inner_text()
    assert wrong.get_attribute("aria-pressed") == "true"
    right = page.locator("#matrix td.right button").first
    right.focus()
    page.keyboard.press("Enter")
    assert "classified correctly" in page.locator("#cell p").inner_text()
    assert wrong.get_attribute("aria-pressed") == "false"
    assert said == []
    page.close()


def test_the_matrix_is_sorted(chromium: Browser, pages: dict[str, Path]) -> None:
    page, said = opened(chromium, pages["report"], 1200, "light")
    before = page.locator("#matrix").inner_text()
    page.locator("#order").select_option("recall")
    worst = [float(row.get_attribute("data-recall") or 0) for row in page.locator("#matrix tbody tr").all()]
    assert worst == sorted(worst)
    rows = page.locator("#matrix tbody th").all_inner_texts()
    assert page.locator("#matrix thead th").all_inner_texts()[1:] == rows
    for number, cell in enumerate(page.locator("#matrix td.right").all()):
        assert cell.evaluate("cell => [cell.parentElement.rowIndex - 1, cell.cellIndex - 1]") == [number, number]
    page.locator("#order").select_option("name")
    assert page.locator("#matrix").inner_text() == before
    assert said == []
    page.close()
