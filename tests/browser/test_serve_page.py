"""The page of `vitrail serve` as a visitor meets it: pictures in, answers out, and nobody shut out."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.browser.service_page import UNKNOWN, Visit, bring, broken, card, predicted

pytestmark = pytest.mark.data
SERIOUS = {"serious", "critical"}
CORGI, SHEPHERD = "Pembroke Welsh Corgi", "German Shepherd Dog"


@pytest.fixture
def shepherd(dog: Path) -> Path:
    return dog.with_name("dog2.jpg")


def drawn(page: Page, number: int = 0) -> str:
    return page.locator("canvas.view-stage").nth(number).evaluate("canvas => canvas.toDataURL()")


def test_a_chosen_picture_gets_its_label(chromium: Browser, served: str, dog: Path) -> None:
    visit = Visit(chromium, served)
    page = visit.open()
    page.get_by_label("Choose pictures").set_input_files(dog)
    found = card(page, "dog1.jpg")
    expect(found.get_by_role("heading", name=CORGI)).to_be_visible()
    expect(found.get_by_role("listitem")).to_have_count(5)
    widths = found.locator(".bar i").evaluate_all("bars => bars.map(bar => bar.getBoundingClientRect().width)")
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 10 * widths[-1] > 0
    expect(page.get_by_role("log")).to_contain_text(f"dog1.jpg: {CORGI}, 7")
    expect(page.locator("#progress")).to_be_hidden()
    visit.close()


def test_a_dropped_picture_too(chromium: Browser, served: str, shepherd: Path) -> None:
    visit = Visit(chromium, served)
    page = visit.open()
    assert bring(page, "dragover", shepherd), "or the browser leaves the page for the file"
    expect(page.locator("#drop")).to_have_class("over")
    assert bring(page, "drop", shepherd)
    expect(page.locator("#drop")).not_to_have_class("over")
    expect(card(page, "dog2.jpg").get_by_role("heading", name=SHEPHERD)).to_be_visible()
    visit.close()


def test_a_pasted_picture_too(chromium: Browser, served: str, shepherd: Path) -> None:
    visit = Visit(chromium, served)
    page = visit.open()
    assert bring(page, "paste", shepherd, "image.png")
    expect(card(page, "Pasted picture.png").get_by_role("heading", name=SHEPHERD)).to_be_visible()
    visit.close()


CAMERA = """(() => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 64;
  const paint = () => canvas.getContext("2d").fillRect(0, 0, 64, 64);
  setInterval(paint, 50);
  navigator.mediaDevices.getUserMedia = async () => { paint(); return (window.film = canvas.captureStream()); };
})()"""


def test_the_camera_is_on_only_while_needed(chromium: Browser, served: str) -> None:
    visit = Visit(chromium, served)
    visit.page.add_init_script(CAMERA)
    page = visit.open()
    page.get_by_role("button", name="Use the camera").click()
    expect(page.get_by_label("What the camera sees")).to_have_js_property("videoWidth", 64)
    page.get_by_role("button", name="Take the picture").click()
    expect(card(page, "From the camera.jpg").locator(".answer")).to_be_visible()
    expect(page.get_by_label("What the camera sees")).to_be_hidden()
    assert page.evaluate("film.getTracks().map(track => track.readyState)") == ["ended"]
    visit.close()


def test_without_a_camera_none_is_offered(chromium: Browser, served: str) -> None:
    visit = Visit(chromium, served)
    visit.page.add_init_script("delete Navigator.prototype.mediaDevices")
    expect(visit.open().get_by_role("button", name="Use the camera")).to_be_hidden()
    visit.close()


def test_the_view_follows_the_pointer_and_its_controls(
    chromium: Browser, served: str, dog: Path, shepherd: Path
) -> None:
    visit = Visit(chromium, served)
    page = visit.open()
    page.set_input_files("#files", [dog, shepherd])
    for name in ("dog1.jpg", "dog2.jpg"):
        card(page, name).get_by_role("button", name="Show what the model looks at").click()
    expect(page.locator("canvas.view-stage")).to_have_count(2)
    one, said = card(page, "dog1.jpg"), card(page, "dog1.jpg").locator(".view-said")
    expect(said).to_contain_text(f"speaks for the chosen class. {CORGI}")
    first, other = drawn(page), drawn(page, 1)
    one.locator("canvas.view-stage").hover(position={"x": 200, "y": 150})
    expect(said).to_contain_text("The patch in row")
    seen = {first, drawn(page)}
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
        assert drawn(page) not in seen, words
        seen.add(drawn(page))
    assert drawn(page, 1) == other, "each picture has a view of its own"
    ids = page.locator("[id]").evaluate_all("parts => parts.map(part => part.id)")
    assert len(ids) == len(set(ids))
    one.get_by_role("button", name="Hide what the model looks at").click()
    expect(page.locator("canvas.view-stage").first).to_be_hidden()
    visit.close()


def test_a_broken_file_is_refused_in_words_and_a_name_is_no_markup(chromium: Browser, served: str, dog: Path) -> None:
    name = "<b>bad<img src=x onerror=alert(1)>.jpg"
    visit = Visit(chromium, served)
    page = visit.open()
    page.set_input_files(
        "#files", [broken(name), {"name": f"good{name}", "mimeType": "image/jpeg", "buffer": dog.read_bytes()}]
    )
    found = card(page, name)
    expect(found.get_by_role("heading", name="Refused")).to_be_visible()
    expect(found).to_contain_text("no picture")
    expect(found).to_contain_text("Try this: JPEG, PNG")
    expect(found.get_by_role("button", name="Show what")).to_have_count(0)
    expect(card(page, f"good{name}").get_by_role("heading", name=CORGI)).to_be_visible()
    page.set_input_files("#files", [broken("empty.jpg", b"")])
    expect(card(page, "empty.jpg")).to_contain_text("This file is empty.")
    page.reload()
    expect(page.locator("#past")).to_contain_text(f"good{name}")
    expect(page.locator("main b, main img[src=x]")).to_have_count(0)
    visit.close(refusals=1)


@pytest.mark.parametrize("width", [390, 1200])
def test_pictures_lie_side_by_side(chromium: Browser, served: str, dog: Path, shepherd: Path, width: int) -> None:
    visit = Visit(chromium, served, width=width)
    page = visit.open()
    page.set_input_files("#files", [dog, shepherd, dog.with_name("astronaut.jpg")])
    expect(page.locator(".bars")).to_have_count(3)
    places = page.locator("li.card").evaluate_all(
        "cards => cards.map(card => card.getBoundingClientRect()).map(box => [box.x, box.y])"
    )
    assert len({x for x, _ in places}) == (3 if width == 1200 else 1)
    assert len({y for _, y in places}) == (1 if width == 1200 else 3)
    expect(page.locator("li.card .file")).to_have_text(["dog1.jpg", "dog2.jpg", "astronaut.jpg"])
    page.get_by_role("button", name="Remove dog2.jpg").press("Enter")
    expect(page.locator("li.card")).to_have_count(2)
    expect(page.get_by_role("button", name="Remove astronaut.jpg")).to_be_focused()
    expect(page.locator("#past")).to_contain_text(SHEPHERD)
    visit.close()


def test_the_history_stays_until_it_is_forgotten(chromium: Browser, served: str, dog: Path) -> None:
    visit = Visit(chromium, served)
    page = visit.open()
    expect(page.locator("#history")).to_be_hidden()
    page.set_input_files("#files", dog)
    expect(page.locator(".bars")).to_be_visible()
    expect(page.locator("#history")).to_contain_text("kept in this browser only")
    page.reload()
    past = page.locator("#past li")
    expect(past).to_contain_text(["dog1.jpg"])
    expect(past).to_contain_text([CORGI])
    assert past.locator("img").evaluate("image => image.naturalWidth") > 50
    assert page.evaluate("JSON.stringify(localStorage).length") < 20_000, "thumbnails are small"
    page.get_by_role("button", name="Forget it all").click()
    expect(page.locator("#history")).to_be_hidden()
    assert page.evaluate("localStorage.length") == 0
    page.reload()
    page.wait_for_selector("html[data-ready=yes]")
    expect(past).to_have_count(0)
    visit.close()


def test_storage_may_be_denied(chromium: Browser, served: str, dog: Path) -> None:
    visit = Visit(chromium, served)
    for store in ("localStorage", "sessionStorage"):
        denial = (
            f"Object.defineProperty(window, '{store}', {{ get() {{ throw new DOMException('no', 'SecurityError') }} }})"
        )
        visit.page.add_init_script(denial)
    page = visit.open()
    page.set_input_files("#files", dog)
    expect(page.get_by_role("heading", name=CORGI)).to_be_visible()
    expect(page.locator("#history")).to_contain_text("forgotten when you leave")
    page.get_by_role("button", name="Remove dog1.jpg").click()
    expect(page.locator("#past")).to_contain_text(CORGI)
    visit.close()


OUTLINE = """() => {
  const at = document.activeElement; // the input of files is seen as its label
  return getComputedStyle(at.id === "files" ? at.nextElementSibling : at).outlineStyle;
}"""


def test_the_keyboard_alone_suffices(chromium: Browser, served: str, dog: Path) -> None:
    visit = Visit(chromium, served)
    page = visit.open()
    page.set_input_files("#files", dog)
    expect(page.locator(".bars")).to_be_visible()
    reached = []
    page.evaluate("document.activeElement.blur()")
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
        assert page.evaluate(OUTLINE) == "solid", "a ring of our own, which is seen on any background"
        if reached[-1] == "forget":
            break
    assert reached == ["which", "files", "camera", "\u00d7", "Show what the model looks at", "forget"]
    visit.close()


@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_for_everybody(chromium: Browser, served: str, dog: Path, width: int, scheme: str) -> None:
    visit = Visit(chromium, served, width=width, scheme=scheme)
    page = visit.open()
    page.set_input_files("#files", dog)
    expect(page.locator(".bars")).to_have_count(1)
    page.reload()
    page.set_input_files("#files", [dog, dog.with_name("dog2.jpg")])
    page.set_input_files("#files", [broken()])
    expect(page.locator(".bars")).to_have_count(2)
    predicted(visit, UNKNOWN)
    page.set_input_files("#files", [broken("unlike.jpg", dog.read_bytes())])
    expect(page.locator(".verdict")).to_be_visible()
    card(page, "dog1.jpg").get_by_role("button", name="Show what").click()
    expect(page.locator("canvas.view-stage")).to_be_visible()
    for summary in page.locator("summary:visible").all():  # this model has no card
        summary.click()
    page.locator("#gate").evaluate("gate => { gate.hidden = false; }")
    page.locator("#shoot").evaluate("panel => { panel.hidden = false; }")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    faults = [fault for fault in Axe().run(page).response["violations"] if fault["impact"] in SERIOUS]
    assert not faults, [(fault["id"], [node["html"] for node in fault["nodes"]][:3]) for fault in faults]
    visit.close(refusals=1)
