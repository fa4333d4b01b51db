"""The pages of clips in a real browser: explanations and tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, expect

from tests.browser.pages import opened
from tests.conftest import fill
from tests.contract.clip_runs import tone
from tests.contract.small_clips import ramp_video
from vitrail import create_model, explain
from vitrail.verbs.tokens import tokens

SIZES = [(390, "dark"), (1200, "light")]
MODELS = {
    "waveform": "vit_mu_patch80_sound1600",
    "spectrogram": "vit_mu_patch8_mel16x40",
    "perceiver": "perceiver_mu_sound1600",
    "video": "vit_mu_patch2x8_gap_video4x16",
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    (folder / "a <b>tone<.wav").write_bytes(tone(440))
    (folder / "video.mp4").write_bytes(ramp_video(num_frames=30))
    for form, name in MODELS.items():
        model = fill(create_model(name, num_classes=4), 0.1).eval()
        model.labels = ("</script>", "b" * 60, "c", "d")
        found = explain(model, folder / ("video.mp4" if form == "video" else "a <b>tone<.wav"))
        (folder / f"{form}.html").write_text(found.page())
    return {form: folder / f"{form}.html" for form in MODELS}


@pytest.mark.parametrize(("width", "scheme"), SIZES)
@pytest.mark.parametrize("form", MODELS)
def test_class_and_method_choose_the_heat(
    chromium: Browser, pages: dict[str, Path], form: str, width: int, scheme: str
) -> None:
    page, said = opened(chromium, pages[form], width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    heat = page.locator(".heat")
    assert heat.count() == (4 if form == "video" else 1)
    assert heat.evaluate_all("(all) => all.every((each) => each.complete && each.naturalWidth > 0)")
    caption, first = page.locator("#caption"), heat.first.get_attribute("src")
    expect(caption).to_contain_text("Relevance")
    page.locator("button[data-class='1']").click()
    expect(page.locator("button[data-class='1']")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("button[data-class='0']")).to_have_attribute("aria-pressed", "false")
    assert heat.first.get_attribute("src") != first
    page.get_by_role("button", name="Attention rollout").click()
    expect(caption).to_contain_text("The same for every class")
    page.locator("#opacity").fill("0")
    assert heat.first.evaluate("(each) => getComputedStyle(each).opacity") == "0"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert said == []
    page.close()


def test_heat_covers_what_it_is_about(chromium: Browser, pages: dict[str, Path]) -> None:
    """A video's heat lies on its frame, tubes of two frames share it; that of a sound covers the whole waveform."""
    page, _ = opened(chromium, pages["video"], 1200, "light")
    layers = page.locator(".heat").evaluate_all("(all) => all.map((each) => each.dataset.layer)")
    assert layers == ["0", "0", "1", "1"]
    page.close()
    for form in MODELS:
        page, _ = opened(chromium, pages[form], 1200, "light")
        boxes = page.locator(".layers").first.evaluate(
            "(each) => [each, ...each.querySelectorAll('img')].map((one) => one.getBoundingClientRect().toJSON())"
        )
        for side in ("left", "top", "width", "height"):
            assert np.ptp([box[side] for box in boxes]) < 1, (form, side)
        page.close()


def test_a_click_plays_the_sound_from_there(chromium: Browser, pages: dict[str, Path]) -> None:
    page, said = opened(chromium, pages["waveform"], 1200, "light")
    page.wait_for_function("document.getElementById('sound').duration > 0")
    assert page.evaluate("document.getElementById('sound').duration") == pytest.approx(0.1, abs=0.001)
    page.evaluate("document.getElementById('sound').play = () => Promise.resolve()")  # no loudspeaker here
    assert page.locator("#playhead").is_hidden()
    box = page.locator("#stage").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 20)
    assert page.evaluate("document.getElementById('sound').currentTime") == pytest.approx(0.05, abs=0.001)
    page.wait_for_function("!document.getElementById('playhead').hidden")
    assert said == []
    page.close()


@pytest.mark.parametrize(("width", "scheme"), SIZES)
@pytest.mark.parametrize("form", MODELS)
def test_tokens_of_clips(chromium: Browser, tmp_path: Path, form: str, width: int, scheme: str) -> None:
    clip = tmp_path / ("clip.mp4" if form == "video" else "clip.wav")
    clip.write_bytes(ramp_video(num_frames=30) if form == "video" else tone(440))
    found = tokens(clip, model=MODELS[form], out=tmp_path / "page.html")
    page, said = opened(chromium, tmp_path / "page.html", width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    cells = page.locator(".grid span")
    num_shown = {"video": 16, "perceiver": 400}.get(form, found.patches.num_patches)
    assert cells.count() == num_shown
    assert cells.evaluate_all("(all) => all.every((each) => each.offsetWidth > 2 && each.offsetHeight > 2)")
    assert said == []
    page.close()
