"""The page of `vitrail serve` as visitors use it: images in, predictions out, accessible to everybody."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.browser.service_page import UNKNOWN, Visit, add_file, broken, card, change_predictions

pytestmark = pytest.mark.data
SERIOUS = {"serious", "critical"}
CORGI, SHEPHERD = "Pembroke Welsh Corgi", "German Shepherd Dog"


@pytest.fixture
def shepherd(dog: Path) -> Path:
    return dog.with_name("dog2.jpg")


def canvas_data(page: Page, number: int = 0) -> str:
    return page.locator("canvas.view-stage").nth(number).evaluate("canvas => canvas.toDataURL()")


def test_a_chosen_image_gets_its_label(chromium: Browser, served: str, dog: Path) -> None:
    visit = Visit(chromium, served)
    page = visit.open()
    page.get_by_label("Choose images").set_input_files(dog)
    found = card(page, "dog1.jpg")
    expect(found.get_by_role("heading", name=CORGI)).to_be_visible()
    expect(found.get_by_role("listitem")).to_have_count(5)
    widths = found.locator(".bar i").evaluate_all("bars => bars.map(bar => bar.getBoundingClientRect().width)")
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 10 * widths[-1] > 0
    expect(page.get_by_role("log")).to_contain_text(f"dog1.jpg: {CORGI}, 7")
    expect(page.locator("#progress")).to_be_hidden()
    visit.close()


def test_a_dropped_image_gets_its_label(chromium: Browser, served: str, shepherd: Path) -> None:
    visit = Visit(chromium, served)
    page = visit.open()
    assert add_file(page, "dragover", shepherd), "or the browser navigates to the file"
    expect(page.locator("#drop-zone")).to_have_class("over")
    assert add_file(page, "drop", shepherd)
    expect(page.locator("#drop-zone")).not_to_have_class("over")
    expect(card(page, "dog2.jpg").get_by_role("heading", name=SHEPHERD)).to_be_visible()
    visit.close()


def test_a_pasted_image_gets_its_label(chromium: Browser, served: str, shepherd: Path) -> None:
    visit = Visit(chromium, served)
    page = visit.open()
    assert add_file(page, "paste", shepherd, "image.png")
    expect(card(page, "Pasted image.png").get_by_role("heading", name=SHEPHERD)).to_be_visible()
    visit.close()


CAMERA = """(() => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 64;
  const paint = () => canvas.getContext("2d").fillRect(0, 0, 64, 64);
  setInterval(paint, 50);
  navigator.mediaDevices.getUserMedia = async () => { paint(); return (window.stream = canvas.captureStream()); };
})()"""


def test_the_camera_is_on_only_while_needed(chromium: Browser, served: str) -> None:
    visit = Visit(chromium, served)
    visit.page.add_init_script(CAMERA)
    page = visit.open()
    page.get_by_role("button", name="Use camera").click()
    expect(page.get_by_label("Camera preview")).to_have_js_property("videoWidth", 64)
    page.get_by_role("button", name="Take photo").click()
    expect(card(page, "Camera photo.jpg").locator(".prediction")).to_be_visible()
    expect(page.get_by_label("Camera preview")).to_be_hidden()
    assert page.evaluate("stream.getTracks().map(track => track.readyState)") == ["ended"]
    visit.close()


def test_the_camera_is_offered_only_if_supported(chromium: Browser, served: str) -> None:
    visit = Visit(chromium, served)
    visit.page.add_init_script("delete Navigator.prototype.mediaDevices")
    expect(visit.open().get_by_role("button", name="Use camera")).to_be_hidden()
    visit.close()


def test_the_view_follows_the_pointer_and_its_controls(
    chromium: Browser, served: str, dog: Path, shepherd: Path
) -> None:
    visit = Visit(chromium, served)
    page = visit.open()
    page.set_input_files("#file-input", [dog, shepherd])
    for name in ("dog1.jpg", "dog2.jpg"):
        card(page, name).get_by_role("button", name="Show explanation").click()
    expect(page.locator("canvas.view-stage")).to_have_count(2)
    one, said = card(page, "dog1.jpg"), card(page, "dog1.jpg").locator(".view-caption")
    expect(said).to_contain_text(f"evidence for the selected class. {CORGI}")
    one.get_by_role("button", name="Attention", exact=True).click()
    first, other = canvas_data(page), canvas_data(page, 1)
    one.locator("canvas.view-stage").hover(position={"x": 200, "y": 150})
    expect(said).to_contain_text("The patch in row")
    seen = {first, canvas_data(page)}
    for action, words in (
        (lambda: one.get_by_label("Block", exact=False).and_(one.locator("input")).fill("3"), "Block 3 of 12"),
        (lambda: one.get_by_role("button", name="head 2").click(), "Block 3 of 12, head 2 of 3"),
        (lambda: one.get_by_role("button", name="Grad-CAM").click(), CORGI),
        (lambda: one.get_by_role("button", name="Cardigan Welsh Corgi").click(), "Cardigan"),
        (lambda: one.locator("canvas.view-stage").press("ArrowUp"), "The patch in row"),
        (lambda: one.locator("canvas.view-stage").press("."), "Block 4 of 12"),
    ):
        action()
        expect(said).to_contain_text(words)
        assert canvas_data(page) not in seen, words
        seen.add(canvas_data(page))
    assert canvas_data(page, 1) == other, "each image has its own view"
    ids = page.locator("[id]").evaluate_all("parts => parts.map(part => part.id)")
    assert len(ids) == len(set(ids))
    one.get_by_role("button", name="Hide explanation").click()
    expect(page.locator("canvas.view-stage").first).to_be_hidden()
    visit.close()


def test_a_broken_file_is_rejected_and_its_name_is_escaped(chromium: Browser, served: str, dog: Path) -> None:
    name = "<b>bad<img src=x onerror=alert(1)>.jpg"
    visit = Visit(chromium, served)
    page = visit.open()
    page.set_input_files(
        "#file-input", [broken(name), {"name": f"good{name}", "mimeType": "image/jpeg", "buffer": dog.read_bytes()}]
    )
    found = card(page, name)
    expect(found.get_by_role("heading", name="Rejected")).to_be_visible()
    expect(found).to_contain_text("not an image")
    expect(found).to_contain_text("Try JPEG, PNG")
    expect(found.get_by_role("button", name="Show explanation")).to_have_count(0)
    expect(card(page, f"good{name}").get_by_role("heading", name=CORGI)).to_be_visible()
    page.set_input_files("#file-input", [broken("empty.jpg", b"")])
    expect(card(page, "empty.jpg")).to_contain_text("This file is empty.")
    page.reload()
    expect(page.locator("#history-list")).to_contain_text(f"good{name}")
    expect(page.locator("main b, main img[src=x]")).to_have_count(0)
    visit.close(num_errors=1)


@pytest.mark.parametrize("width", [390, 1200])
def test_images_are_shown_side_by_side(chromium: Browser, served: str, dog: Path, shepherd: Path, width: int) -> None:
    visit = Visit(chromium, served, width=width)
    page = visit.open()
    page.set_input_files("#file-input", [dog, shepherd, dog.with_name("astronaut.jpg")])
    expect(page.locator(".bars")).to_have_count(3)
    places = page.locator("li.card").evaluate_all(
        "cards => cards.map(card => card.getBoundingClientRect()).map(box => [box.x, box.y])"
    )
    assert len({x for x, _ in places}) == (3 if width == 1200 else 1)
    assert len({y for _, y in places}) == (1 if width == 1200 else 3)
    expect(page.locator("li.card .file-name")).to_have_text(["dog1.jpg", "dog2.jpg", "astronaut.jpg"])
    page.get_by_role("button", name="Remove dog2.jpg").press("Enter")
    expect(page.locator("li.card")).to_have_count(2)
    expect(page.get_by_role("button", name="Remove astronaut.jpg")).to_be_focused()
    expect(page.locator("#history-list")).to_contain_text(SHEPHERD)
    visit.close()


def test_the_history_is_stored_until_it_is_cleared(chromium: Browser, served: str, dog: Path) -> None:
    visit = Visit(chromium, served)
    page = visit.open()
    expect(page.locator("#history")).to_be_hidden()
    page.set_input_files("#file-input", dog)
    expect(page.locator(".bars")).to_be_visible()
    expect(page.locator("#history")).to_contain_text("stored in this browser only")
    page.reload()
    entries = page.locator("#history-list li")
    expect(entries).to_contain_text(["dog1.jpg"])
    expect(entries).to_contain_text([CORGI])
    assert entries.locator("img").evaluate("image => image.naturalWidth") > 50
    assert page.evaluate("JSON.stringify(localStorage).length") < 20_000, "thumbnails are small"
    page.get_by_role("button", name="Clear all").click()
    expect(page.locator("#history")).to_be_hidden()
    assert page.evaluate("localStorage.length") == 0
    page.reload()
    page.wait_for_selector("html[data-ready=yes]")
    expect(entries).to_have_count(0)
    visit.close()


def test_storage_may_be_denied(chromium: Browser, served: str, dog: Path) -> None:
    visit = Visit(chromium, served)
    for store in ("localStorage", "sessionStorage"):
        denial = (
            f"Object.defineProperty(window, '{store}', {{ get() {{ throw new DOMException('no', 'SecurityError') }} }})"
        )
        visit.page.add_init_script(denial)
    page = visit.open()
    page.set_input_files("#file-input", dog)
    expect(page.get_by_role("heading", name=CORGI)).to_be_visible()
    expect(page.locator("#history")).to_contain_text("the history is lost when you leave")
    page.get_by_role("button", name="Remove dog1.jpg").click()
    expect(page.locator("#history-list")).to_contain_text(CORGI)
    visit.close()


OUTLINE = """() => {
  const at = document.activeElement; // the file input is shown as its label
  return getComputedStyle(at.id === "file-input" ? at.nextElementSibling : at).outlineStyle;
}"""


def test_the_page_works_with_the_keyboard_alone(chromium: Browser, served: str, dog: Path) -> None:
    visit = Visit(chromium, served)
    page = visit.open()
    page.set_input_files("#file-input", dog)
    expect(page.locator(".bars")).to_be_visible()
    reached = []
    page.evaluate("document.activeElement.blur()")
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
        assert page.evaluate(OUTLINE) == "solid", "a focus ring that is visible on any background"
        if reached[-1] == "history-clear":
            break
    assert reached == ["model-link", "file-input", "camera-open", "\u00d7", "Show explanation", "history-clear"]
    visit.close()


@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility(chromium: Browser, served: str, dog: Path, width: int, scheme: str) -> None:
    visit = Visit(chromium, served, width=width, scheme=scheme)
    page = visit.open()
    page.set_input_files("#file-input", dog)
    expect(page.locator(".bars")).to_have_count(1)
    page.reload()
    page.set_input_files("#file-input", [dog, dog.with_name("dog2.jpg")])
    page.set_input_files("#file-input", [broken()])
    expect(page.locator(".bars")).to_have_count(2)
    change_predictions(visit, UNKNOWN)
    page.set_input_files("#file-input", [broken("unlike.jpg", dog.read_bytes())])
    expect(page.locator(".warning")).to_be_visible()
    card(page, "dog1.jpg").get_by_role("button", name="Show explanation").click()
    expect(page.locator("canvas.view-stage")).to_be_visible()
    for summary in page.locator("summary:visible").all():  # this model has no card
        summary.click()
    page.locator("#token-panel").evaluate("panel => { panel.hidden = false; }")
    page.locator("#camera-panel").evaluate("panel => { panel.hidden = false; }")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    violations = [each for each in Axe().run(page).response["violations"] if each["impact"] in SERIOUS]
    assert not violations, [(each["id"], [node["html"] for node in each["nodes"]][:3]) for each in violations]
    visit.close(num_errors=1)
