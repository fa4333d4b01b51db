"""The explanation page in a real browser: hovering, clicking and typing change the view."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Browser, Page

from tests.conftest import fill
from tests.contract.small_images import write_folder
from vitrail import create_model, explain
from vitrail.inspection.figures import write_figures
from vitrail.inspection.sample import sample_evenly

KINDS: dict[str, tuple[str, dict[str, Any], list[str] | None]] = {
    "vit": ("vit_mu_patch16_224", {}, None),
    "registers": ("vit_mu_patch16_reg4_224", {}, None),
    "mean": ("vit_mu_patch16_gap_224", {}, None),
    "distilled": ("deit_mu_distilled_patch16_224", {}, ["rollout"]),
    "pooled": ("vit_mu_patch16_siglip_224", {}, None),
    "hybrid": ("vit_mu_r_s16_p8_224", {}, ["gradcam"]),
    "without positions": ("vit_mu_patch16_224", {"position": "none"}, ["relevance"]),
    "convolutions": ("resnetv2_50x1_bit", {}, ["gradcam"]),
    "perceiver": ("perceiver_mu_32", {"cross_heads": 3}, None),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    pixels = np.random.default_rng(0).integers(0, 256, (12, 18, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).resize((360, 240), Image.Resampling.BICUBIC)
    image.save(folder / "an <b>image<.png")
    for kind, (name, fields, methods) in KINDS.items():
        model = fill(create_model(name, num_classes=10, **fields), 0.1).eval()
        model.labels = tuple(f"</script><b>{letter}" for letter in "abcdefghij")
        found = explain(model, folder / "an <b>image<.png", methods=methods)
        (folder / f"{kind}.html").write_text(found.page())
    return {kind: folder / f"{kind}.html" for kind in KINDS}


@pytest.fixture
def messages() -> list[str]:
    return []


def open_page(chromium: Browser, path: Path, messages: list[str], width: int = 1200, scheme: str = "light") -> Page:
    page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on(
        "request",
        lambda request: (
            messages.append(request.url) if not request.url.startswith(("file:", "data:", "blob:")) else None
        ),
    )
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready=yes]")
    return page


def canvas_of(page: Page) -> str:
    return page.evaluate("document.getElementById('stage').toDataURL()")


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1200, "light")])
@pytest.mark.parametrize("kind", KINDS)
def test_the_page_opens_anywhere(
    chromium: Browser, pages: dict[str, Path], messages: list[str], kind: str, width: int, scheme: str
) -> None:
    page = open_page(chromium, pages[kind], messages, width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for button in page.locator("button[data-view]").all():
        button.click()
    assert messages == []
    assert "</script><b>" in page.inner_text("main")
    if kind == "vit":
        assert Axe().run(page).response["violations"] == []
    page.close()


def test_hovering_shows_what_a_patch_attends_to(chromium: Browser, pages: dict[str, Path], messages: list[str]) -> None:
    page = open_page(chromium, pages["vit"], messages)
    page.get_by_role("button", name="Attention", exact=True).click()
    before = canvas_of(page)
    box = page.locator("#stage").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.3)
    first = canvas_of(page)
    assert first != before
    assert "patch in row" in page.inner_text("#caption")
    page.mouse.move(box["x"] - 9, box["y"] - 9)
    assert canvas_of(page) == before, "leaving the image restores the selection"
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.8)
    assert canvas_of(page) != first
    page.mouse.click(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.8)
    pinned = canvas_of(page)
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.2)
    assert canvas_of(page) == pinned, "a click pins the patch"
    page.mouse.move(box["x"] - 9, box["y"] - 9)
    assert canvas_of(page) == pinned
    assert messages == []
    page.close()


def test_pointing_leaves_the_chosen_view(chromium: Browser, pages: dict[str, Path], messages: list[str]) -> None:
    """The rows below show the attention from the patch under the pointer; only a click switches the view."""
    page = open_page(chromium, pages["vit"], messages)
    before, query = canvas_of(page), page.inner_text("#query")
    box = page.locator("#stage").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.3)
    assert canvas_of(page) == before
    assert "evidence for the selected class" in page.inner_text("#caption")
    assert page.get_by_role("button", name="Relevance").get_attribute("aria-pressed") == "true"
    assert "patch in row" in page.inner_text("#query")
    page.mouse.move(box["x"] - 9, box["y"] - 9)
    assert page.inner_text("#query") == query
    page.mouse.click(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.3)
    assert "patch in row" in page.inner_text("#caption")
    assert page.get_by_role("button", name="Attention", exact=True).get_attribute("aria-pressed") == "true"
    assert messages == []
    page.close()


def test_the_outputs_of_the_encoder_are_not_shown_as_its_inputs(
    chromium: Browser, pages: dict[str, Path], messages: list[str]
) -> None:
    page = open_page(chromium, pages["vit"], messages)
    tokens = page.locator("ol.steps li", has=page.get_by_role("heading", name="Tokens"))
    encoder = page.locator("ol.steps li", has=page.get_by_role("heading", name="Transformer encoder"))
    assert tokens.locator("canvas").count() == 0
    assert "after the last block" in encoder.inner_text()
    assert encoder.locator("canvas").evaluate("(canvas) => [canvas.width, canvas.height]") == [14, 14]
    assert "after block 1" not in page.inner_text("ol.steps")
    assert messages == []
    page.close()


def test_blocks_heads_views_and_classes_switch(chromium: Browser, pages: dict[str, Path], messages: list[str]) -> None:
    page = open_page(chromium, pages["registers"], messages)
    seen = {canvas_of(page)}
    for action in (
        page.locator("#layers button").first.click,
        page.locator("#heads button").last.click,
        lambda: page.locator("#layer").fill("2"),
        lambda: page.get_by_role("button", name="register 3").click(),
        lambda: page.get_by_role("button", name="Rollout").click(),
        lambda: page.get_by_role("button", name="Grad-CAM").click(),
        lambda: page.locator("[data-class]").nth(1).click(),
        lambda: page.get_by_role("button", name="Token similarity").click(),
        lambda: page.locator("#layer").fill("1"),
        lambda: page.get_by_role("button", name="Token colours").click(),
        lambda: page.get_by_role("button", name="Position embeddings").click(),
        lambda: page.locator("#opacity").fill("0.1"),
    ):
        action()
        now = canvas_of(page)
        assert now not in seen
        seen.add(now)
    page.get_by_role("button", name="Play through blocks").click()
    page.locator("#caption", has_text=re.compile("^Block 1 ")).wait_for()
    page.get_by_role("button", name="Rollout").click()
    page.get_by_role("button", name="Play through blocks").wait_for()
    assert "multiplied through all blocks" in page.inner_text("#caption"), (
        "choosing a view without blocks stops playing"
    )
    assert messages == []
    page.close()


@pytest.mark.parametrize("kind", ["vit", "mean"])
def test_the_keyboard_alone_suffices(chromium: Browser, pages: dict[str, Path], messages: list[str], kind: str) -> None:
    page = open_page(chromium, pages[kind], messages)
    page.keyboard.press("ArrowUp")
    assert "evidence for the selected class" in page.inner_text("#caption"), (
        "shortcuts work only with the image focused"
    )
    page.keyboard.press("Tab")
    for key, expected in (
        ("ArrowUp", "patch in row 7, column 8"),
        ("ArrowLeft", "patch in row 7, column 7"),
        (",", "Block 1 of 2"),
        ("h", "head 1 of 2"),
        ("h", "head 2 of 2"),
        ("v", ""),
        ("2", "</script><b>"),
        (".", "Block 2 of 2"),
        *([("c", "The class token attends to")] if kind == "vit" else []),
    ):
        page.keyboard.press(key)
        assert expected in page.inner_text("#caption"), key
    before = canvas_of(page)
    page.keyboard.press("-")
    assert canvas_of(page) != before
    assert messages == []
    page.close()


def test_what_each_latent_reads(chromium: Browser, pages: dict[str, Path], messages: list[str]) -> None:
    page = open_page(chromium, pages["perceiver"], messages)
    page.get_by_role("button", name="Cross-attention", exact=True).click()
    seen = {canvas_of(page)}
    assert "The pixels that the mean of all latents reads" in page.inner_text("#caption")
    for fill_in, expected in (
        (("#latent", "5"), "Stage 2 of 2, mean over heads. The pixels that latent 5 of 8 reads"),
        (("#layer", "1"), "Stage 1 of 2, mean over heads. The pixels that latent 5 of 8 reads"),
        (("#head", "3"), "Stage 1 of 2, head 3 of 3."),
    ):
        page.locator(fill_in[0]).fill(fill_in[1])
        assert expected in page.inner_text("#caption")
        assert canvas_of(page) not in seen
        seen.add(canvas_of(page))
    box = page.locator("#stage").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.8)
    assert canvas_of(page) in seen, "pixels do not attend to anything"
    page.keyboard.press("ArrowRight")
    assert "latent 6 of 8" in page.inner_text("#caption")
    page.get_by_role("button", name="Play through stages").wait_for()
    assert "1,024 pixels" in page.inner_text("ol.steps")
    assert messages == []
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_figures_page_shows_the_figures(
    chromium: Browser, messages: list[str], scheme: str, tmp_path: Path
) -> None:
    model = fill(create_model("vit_mu_patch8_64", num_classes=4), 0.1).eval()
    sample = sample_evenly(write_folder(tmp_path / "images"), 4, model.preprocess)
    write_figures(model, sample, tmp_path / "figures", names=["filters", "distance"])
    page = chromium.new_page(viewport={"width": 390, "height": 800}, color_scheme=scheme)
    page.on("console", lambda message: messages.append(message.text))
    page.goto((tmp_path / "figures" / "figures.html").as_uri())
    widths = page.evaluate("[...document.images].map((image) => image.naturalWidth)")
    assert len(widths) == 2
    assert min(widths) > 100
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert messages == []
    page.close()


def test_pooled_attention_is_drawn_in_place(
    chromium: Browser, messages: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five cells pooled by two: the last square is one cell wide."""
    model = fill(create_model("vit_mu_patch16_224", image_size=80, num_classes=3), 0.1).eval()
    monkeypatch.setattr("vitrail.inspection.page._choose_packing", lambda *_: (2, 255))
    found = explain(model, np.zeros((80, 80, 3), dtype=np.uint8), methods=["rollout"])
    (tmp_path / "page.html").write_text(found.page())
    page = open_page(chromium, tmp_path / "page.html", messages)
    page.get_by_role("button", name="Attention", exact=True).click()
    script = """() => { const canvas = document.getElementById('stage'), pen = canvas.getContext('2d');
        const side = canvas.width / 5;
        const at = (x, y) => [...pen.getImageData((x + .5) * side, (y + .5) * side, 1, 1).data].join();
        return [0, 1, 2, 3, 4].map((row) => [0, 1, 2, 3, 4].map((column) => at(column, row))); }"""
    colours = page.evaluate(script)
    alike = [[(row // 2, column // 2) for column in range(5)] for row in range(5)]
    shades = {}
    for row in range(5):
        for column in range(5):
            assert shades.setdefault(alike[row][column], colours[row][column]) == colours[row][column]
    assert len(set(shades.values())) > 4
    assert "squares of 2 x 2 patches" in page.inner_text("main")
    page.close()


@pytest.mark.parametrize(("pooled", "limit"), [(1, 400_000), (2, 200)])
def test_how_alike_every_other_token_is(
    chromium: Browser, messages: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pooled: int, limit: int
) -> None:
    """The numbers of the page are those of Python, also where a grid of 5 x 7 is averaged over squares."""
    monkeypatch.setattr("vitrail.inspection.page.MAX_TOKEN_SIMILARITY", limit)
    model = fill(create_model("vit_mu_patch16_224", image_size=(80, 112), num_classes=3), 0.1).eval()
    pixels = np.random.default_rng(0).integers(0, 256, (80, 112, 3), dtype=np.uint8)
    found = explain(model, pixels, methods=["rollout"])
    (tmp_path / "page.html").write_text(found.page())
    page = open_page(chromium, tmp_path / "page.html", messages)
    page.get_by_role("button", name="Token similarity").click()
    page.locator("#layer").fill("1")
    page.locator("#stage").focus()
    page.keyboard.press("ArrowUp")
    assert "Block 1 of 2. How alike its output tokens are to the patch in row 2, column 4" in page.inner_text(
        "#caption"
    )
    assert ("squares of 2 x 2 patches" in page.inner_text("#caption")) == (pooled == 2)
    script = """async () => {
        const explanation = await Explanation.unpack(JSON.parse(document.getElementById("data").textContent));
        const { values, low, high } = explanation.tokenSimilarity(1, 23);
        return [[...values], low, high, explanation.data.similarity]; }"""
    values, low, high, data = page.evaluate(script)
    expected = list(found.similarity())[2].reshape(5, 7, 5, 7)
    squares = [slice(start, start + pooled) for start in range(0, 7, pooled)]
    block = {
        (row, column): (squares[row // pooled], squares[column // pooled]) for row in range(5) for column in range(7)
    }
    means = np.array([expected[(*block[3, 2], *block[divmod(cell, 7)])].mean() for cell in range(35)])
    assert data["pooled"] == pooled
    np.testing.assert_allclose(values, means, atol=1.01 / data["shades"])
    assert low == min(values)
    assert low < high < (1 if pooled == 1 else 1.01)
    assert messages == []
    page.close()


@pytest.mark.parametrize("size", [(8, 8), (1, 900)])
def test_small_images_are_enlarged(
    chromium: Browser, messages: list[str], tmp_path: Path, size: tuple[int, int]
) -> None:
    model = fill(create_model("vit_mu_patch16_224", num_classes=3), 0.1).eval()
    (tmp_path / "page.html").write_text(explain(model, np.zeros((*size, 3), dtype=np.uint8)).page())
    page = open_page(chromium, tmp_path / "page.html", messages)
    box = page.locator("#stage").bounding_box()
    assert box is not None
    assert max(box["width"], box["height"]) > 400
    assert messages == []
    page.close()


def test_a_notebook_displays_the_page(chromium: Browser, messages: list[str], tmp_path: Path) -> None:
    model = fill(create_model("vit_mu_patch16_224", num_classes=3), 0.1).eval()
    found = explain(model, np.zeros((50, 50, 3), dtype=np.uint8), methods=["rollout"])
    (tmp_path / "cell.html").write_text(f"<!doctype html><title>notebook</title>{found._repr_html_()}")
    page = chromium.new_page()
    page.goto((tmp_path / "cell.html").as_uri())
    page.frame_locator("iframe").locator("html[data-ready=yes]").wait_for()
    page.close()
