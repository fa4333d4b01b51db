/* global make, percent */
// The list of earlier predictions, without images that still have a card on the page.

import { isStorageDenied, loadHistory } from "./history.js";

const byId = (id) => document.getElementById(id);
const dateFormat = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "short" });

function createItem({ thumb, label, confidence, unknown, name, at, model }) {
  const safe = typeof thumb === "string" && thumb.startsWith("data:image/jpeg;base64,");
  return make("li", {},
    safe ? make("img", { src: thumb, alt: "", loading: "lazy" }) : make("span", { class: "history-placeholder", "aria-hidden": "true" }),
    make("div", {},
      make("p", { class: "history-label", text: unknown ? "Unknown" : label }),
      make("p", { class: "quiet", text: `${unknown ? `closest label ${label}, ` : ""}${percent(Number(confidence))}` }),
      make("p", { class: "quiet history-file", text: String(name) }),
      make("p", { class: "quiet", text: `${dateFormat.format(new Date(Number(at) || 0))}, ${model}` })));
}

export function showHistory(cards) {
  const entries = loadHistory();
  byId("history").hidden = !entries.length && !cards.size;
  byId("history-note").textContent = isStorageDenied()
    ? "This browser denies storage, so the history is lost when you leave."
    : "Labels and thumbnails are stored in this browser only.";
  byId("history-list").replaceChildren(...entries.filter((entry) => !cards.has(entry.id)).map(createItem));
}
