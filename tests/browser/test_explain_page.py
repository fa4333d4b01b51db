"""The page of an explanation as a reader meets it: pointing, clicking and typing change what is shown."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page

from tests.conftest import fill
from tests.contract.small_pictures import write_folder
from vitrail import create_model, explain
from vitrail.inspection.figures import write_figures
from vitrail.inspection.sample import spread_out

KINDS = {
    "vit": ("vit_mu_patch16_224", None),
    "registers": ("vit_mu_patch16_reg4_224", None),
    "mean": ("vit_mu_patch16_gap_224", None),
    "convolutions": ("resnetv2_50x1_bit", ["gradcam"]),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    pixels = np.random.default_rng(0).integers(0, 256, (12, 18, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).resize((360, 240), Image.Resampling.BICUBIC)
    image.save(folder / "a <b>picture<.png")
    for kind, (name, methods) in KINDS.items():
        model = fill(create_model(name, num_classes=10), 0.1).eval()
        model.labels = tuple(f"</script><b>{letter}" for letter in "abcdefghij")
        found = explain(model, folder / "a <b>picture<.png", methods=methods)
        (folder / f"{kind}.html").write_text(found.page())
    return {kind: folder / f"{kind}.html" for kind in KINDS}


@pytest.fixture
def said() -> list[str]:
    return []


def opened(chromium: Browser, path: Path, said: list[str], width: int = 1200, scheme: str = "light") -> Page:
    page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on(
        "request",
        lambda request: said.append(request.url) if not request.url.startswith(("file:", "data:", "blob:")) else None,
    )
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready=yes]")
    return page


def drawn(page: Page) -> str:
    return page.evaluate("document.getElementById('stage').toDataURL()")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("kind", KINDS)
def test_the_page_opens_anywhere(
    chromium: Browser, pages: dict[str, Path], said: list[str], kind: str, width: int, scheme: str
) -> None:
    page = opened(chromium, pages[kind], said, width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert said == []
    assert "</script><b>" in page.inner_text("main")
    page.close()


def test_pointing_shows_what_a_patch_looks_at(chromium: Browser, pages: dict[str, Path], said: list[str]) -> None:
    page = opened(chromium, pages["vit"], said)
    before = drawn(page)
    assert "speaks for the chosen class" in page.inner_text("#said")
    box = page.locator("#stage").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.3)
    first = drawn(page)
    assert first != before
    assert "patch in row" in page.inner_text("#said")
    page.mouse.move(box["x"] - 9, box["y"] - 9)
    assert drawn(page) == before, "who points elsewhere sees again what was chosen"
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.8)
    assert drawn(page) != first
    page.mouse.click(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.8)
    kept = drawn(page)
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.2)
    assert drawn(page) == kept, "a click keeps the patch"
    page.mouse.move(box["x"] - 9, box["y"] - 9)
    assert drawn(page) == kept
    assert said == []
    page.close()


def test_blocks_heads_views_and_classes_switch(chromium: Browser, pages: dict[str, Path], said: list[str]) -> None:
    page = opened(chromium, pages["registers"], said)
    seen = {drawn(page)}
    for action in (
        page.locator("#layers button").first.click,
        page.locator("#heads button").last.click,
        lambda: page.locator("#layer").fill("2"),
        lambda: page.get_by_role("button", name="register 3").click(),
        lambda: page.get_by_role("button", name="Rollout").click(),
        lambda: page.get_by_role("button", name="Grad-CAM").click(),
        lambda: page.locator("[data-choice]").nth(1).click(),
        lambda: page.get_by_role("button", name="Token colours").click(),
        lambda: page.get_by_role("button", name="Positions").click(),
        lambda: page.locator("#strength").fill("0.1"),
    ):
        action()
        now = drawn(page)
        assert now not in seen
        seen.add(now)
    page.get_by_role("button", name="Play the blocks").click()
    page.locator("#said", has_text=re.compile("^Block 1 ")).wait_for()
    page.get_by_role("button", name="Stop").click()
    assert said == []
    page.close()


@pytest.mark.parametrize("kind", ["vit", "mean"])
def test_the_keyboard_alone_suffices(chromium: Browser, pages: dict[str, Path], said: list[str], kind: str) -> None:
    page = opened(chromium, pages[kind], said)
    for key, told in (
        ("ArrowUp", "patch in row 7, column 8"),
        ("ArrowLeft", "patch in row 7, column 7"),
        ("[", "Block 1 of 2"),
        ("h", "head 1 of 2"),
        ("h", "head 2 of 2"),
        ("v", ""),
        ("2", "</script><b>"),
        ("]", "Block 2 of 2"),
        *([("c", "The class token looks")] if kind == "vit" else []),
    ):
        page.keyboard.press(key)
        assert told in page.inner_text("#said"), key
    before = drawn(page)
    page.keyboard.press("-")
    assert drawn(page) != before
    assert said == []
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_of_figures_shows_them(chromium: Browser, said: list[str], scheme: str, tmp_path: Path) -> None:
    model = fill(create_model("vit_mu_patch8_64", num_classes=4), 0.1).eval()
    sample = spread_out(write_folder(tmp_path / "pictures"), 4, model.preprocess)
    write_figures(model, sample, tmp_path / "figures", names=["filters", "distance"])
    page = chromium.new_page(viewport={"width": 390, "height": 800}, color_scheme=scheme)
    page.on("console", lambda message: said.append(message.text))
    page.goto((tmp_path / "figures" / "figures.html").as_uri())
    widths = page.evaluate("[...document.images].map((image) => image.naturalWidth)")
    assert len(widths) == 2
    assert min(widths) > 100
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert said == []
    page.close()
