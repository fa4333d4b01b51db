"""The service's page opened in a browser, and the ways to add images to it."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Locator, Page, Route

ERROR_RESPONSE = (
    "Failed to load resource: the server responded with a status of"  # Chromium's message for every error response
)


class Visit:
    """An open page, and a list of its problems: errors, warnings, requests to other hosts."""

    def __init__(self, chromium: Browser, address: str, *, width: int = 1200, scheme: str = "light") -> None:
        self.page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.address = address
        self.problems: list[str] = []
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self._check_url(request.url))

    def _check_url(self, url: str) -> None:
        if not url.startswith((f"{self.address}/", "blob:", "data:image/")):
            self.problems.append(url)

    def open(self) -> Page:
        self.page.goto(f"{self.address}/")
        self.page.wait_for_selector("html[data-ready=yes]")
        return self.page

    def close(self, *, num_errors: int = 0) -> None:
        """Close the page; it must have had exactly the expected error responses and no other problem."""
        errors = [text for text in self.problems if ERROR_RESPONSE in text]
        assert [text for text in self.problems if text not in errors] == []
        assert len(errors) == num_errors, errors
        self.page.context.close()


def card(page: Page, name: str) -> Locator:
    return page.locator("li.card", has=page.get_by_text(name, exact=True))


def broken(name: str = "broken.jpg", content: bytes = b"not an image") -> Any:
    return {"name": name, "mimeType": "image/jpeg", "buffer": content}


ADD_FILE = """([way, name, content]) => {
  const bytes = Uint8Array.from(atob(content), (char) => char.charCodeAt(0)), transfer = new DataTransfer();
  transfer.items.add(new File([bytes], name, { type: name.endsWith("png") ? "image/png" : "image/jpeg" }));
  const options = { bubbles: true, cancelable: true };
  const event = way === "paste"
    ? new ClipboardEvent("paste", { clipboardData: transfer, ...options })
    : new DragEvent(way, { dataTransfer: transfer, ...options });
  return !(way === "paste" ? document.body : document.getElementById("drop-zone")).dispatchEvent(event);
}"""


def add_file(page: Page, way: str, photo: Path, name: str | None = None) -> bool:
    """Drop, drag over or paste a file; return whether the page prevented the browser's default action."""
    return page.evaluate(ADD_FILE, [way, name or photo.name, base64.b64encode(photo.read_bytes()).decode()])


def change_model(visit: Visit, **changes: Any) -> None:
    """Change the facts of the model that the page receives."""

    def answer(route: Route) -> None:
        response = route.fetch()
        route.fulfill(response=response, json=response.json() | changes)

    visit.page.route("**/v1/model", answer)


def change_predictions(visit: Visit, prediction: dict[str, Any]) -> None:
    """Answer every request with this prediction."""
    body = {"model": {"name": "m", "version": "1"}, "predictions": [{"name": None} | prediction], "request_id": "1"}
    visit.page.route("**/v1/predict?*", lambda route: route.fulfill(json=body))


UNKNOWN = {
    "label": "tench",
    "labels": ["tench"],
    "confidence": 0.4,
    "unknown": True,
    "top": [{"label": "tench", "confidence": 0.4}],
}
