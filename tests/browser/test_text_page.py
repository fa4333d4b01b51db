"""The page of a text in a real browser: tokens, blocks, heads and kinds of attention are chosen."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.pages import opened
from tests.contract.text_runs import KINDS, make_run
from vitrail.inspection.text_explanation import explain_text
from vitrail.run.text_model import load_text_model

TEXTS = {
    "language": "the sheep and goat are grazing",
    "masked_language": "the [MASK] and goat are [MASK] with dogs .",
    "translation": "the </script><b>sheep 🐐",
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("texts")
    for kind in KINDS:
        page = explain_text(load_text_model(make_run(kind, folder)), TEXTS[kind]).page()
        (folder / f"{kind}.html").write_text(page, encoding="utf-8")
    return {kind: folder / f"{kind}.html" for kind in KINDS}


def open_text(chromium: Browser, path: Path, width: int = 1200, scheme: str = "light") -> tuple[Page, list[str]]:
    page, said = opened(chromium, path, width, scheme)
    page.wait_for_selector("html[data-ready=yes]")
    return page, said


def matrix_of(page: Page) -> str:
    return page.evaluate("document.getElementById('matrix').toDataURL()")


def colours_of(page: Page, name: str = "queries") -> list[str]:
    return page.locator(f"#{name} > *").evaluate_all("(all) => all.map((each) => each.style.background)")


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1200, "light")])
@pytest.mark.parametrize("kind", KINDS)
def test_the_page_opens_anywhere(chromium: Browser, pages: dict[str, Path], kind: str, width: int, scheme: str) -> None:
    page, said = open_text(chromium, pages[kind], width, scheme)
    for button in page.locator(".view .row button:visible").all():
        button.click()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    box = page.locator("#matrix").bounding_box()
    assert box is not None
    assert box["width"] <= width
    assert "goat, worked by hand" in page.inner_text("main")
    if kind == "translation":
        assert "</script><b>sheep" in page.inner_text("h1")
        page.get_by_role("button", name="Encoder").click()
        assert "<9F>" in page.inner_text("#queries")
    assert said == []
    page.close()


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_and_heads_change_the_matrix(chromium: Browser, pages: dict[str, Path], kind: str) -> None:
    page, said = open_text(chromium, pages[kind])
    maps = page.locator("[data-map]")
    for number in range(max(1, maps.count())):
        if maps.count():
            maps.nth(number).click()
        seen = set()
        for layer in ("0", "1", "2"):
            page.locator("#layer").fill(layer)
            for head in ("0", "1", "2"):
                page.locator("#head").fill(head)
                seen.add(matrix_of(page))
        assert len(seen) == 9
        if page.locator("#views").is_visible():
            page.get_by_role("button", name="Rollout").click()
            assert matrix_of(page) not in seen
            assert "Rollout over 2 blocks" in page.inner_text("#caption")
            page.locator("#heads button").first.click()
            assert "Mean" not in page.inner_text("#caption")
            assert "Block 2 of 2, head 1 of 2" in page.inner_text("#caption")
    assert said == []
    page.close()


def test_pointing_clicking_and_typing_choose_a_token(chromium: Browser, pages: dict[str, Path]) -> None:
    page, said = open_text(chromium, pages["language"])
    tokens, first = page.locator("#queries button"), page.inner_text("#caption")
    assert "Token 30, “g”" in first
    tokens.nth(5).hover()
    assert "Token 6, “h”" in page.inner_text("#caption")
    assert "Next token after “h”" in page.inner_text("#predictions")
    assert tokens.nth(6).get_attribute("class") == "hidden", "a later token cannot be seen"
    page.mouse.move(2, 2)
    assert page.inner_text("#caption") == first, "leaving the tokens restores the choice"
    tokens.nth(5).click()
    page.mouse.move(2, 2)
    assert "Token 6, “h”" in page.inner_text("#caption"), "a click keeps it"
    page.keyboard.press("ArrowLeft")
    assert "Token 5, “s”" in page.inner_text("#caption")
    page.keyboard.press("Home")
    assert "Token 1, “t”, attends to “t” 100.0" in page.inner_text("#caption")
    page.keyboard.press("r")
    assert "Rollout" in page.inner_text("#caption")
    page.keyboard.press(".")
    assert "Mean over blocks" in page.inner_text("#caption")
    page.keyboard.press("h")
    assert "head 1 of 2" in page.inner_text("#caption")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.dataset.token ?? null") is None, "one stop for all tokens"
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.dataset.token") == "0"
    assert said == []
    page.close()


def test_the_colours_are_the_row_of_the_matrix(chromium: Browser, pages: dict[str, Path]) -> None:
    page, said = open_text(chromium, pages["translation"])
    assert len(set(colours_of(page, "queries"))) == 1, "target tokens are chosen, source tokens coloured"
    before = colours_of(page, "keys")
    box = page.locator("#matrix").bounding_box()
    assert box is not None
    page.locator("#matrix").click(position={"x": 0.8 * box["width"], "y": 0.8 * box["height"]})
    assert "→" in page.inner_text("#pointed")
    assert colours_of(page, "keys") != before
    chosen = page.locator("#queries .chosen").get_attribute("data-token")
    assert chosen != "0"
    page.get_by_role("button", name="Decoder").click()
    assert page.locator("#queries .chosen").get_attribute("data-token") == chosen, "the same step of the decoder"
    page.get_by_role("button", name="Encoder").click()
    assert page.inner_text("#predictions") == "", "an encoder predicts nothing"
    assert said == []
    page.close()


def test_each_mask_has_its_predictions(chromium: Browser, pages: dict[str, Path]) -> None:
    page, said = open_text(chromium, pages["masked_language"])
    assert [text.split("\n")[0] for text in page.locator(".prediction").all_inner_texts()] == [
        "[MASK], token 2",
        "[MASK], token 6",
    ]
    assert page.locator(".prediction li").count() == 10
    assert "Token 2, “[MASK]”" in page.inner_text("#caption")
    assert said == []
    page.close()
