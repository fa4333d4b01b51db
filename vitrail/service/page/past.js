/* global make, percent */
// The list of what was looked at before; pictures whose cards stand on the page are not told twice.

import { isDenied, remembered } from "./history.js";

const byId = (id) => document.getElementById(id);
const when = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "short" });

function item({ thumb, label, confidence, unknown, name, at, model }) {
  const safe = typeof thumb === "string" && thumb.startsWith("data:image/jpeg;base64,");
  return make("li", {},
    safe ? make("img", { src: thumb, alt: "", loading: "lazy" }) : make("span", { class: "past-blank", "aria-hidden": "true" }),
    make("div", {},
      make("p", { class: "past-label", text: unknown ? "Unknown" : label }),
      make("p", { class: "quiet", text: `${unknown ? `nearest label ${label}, ` : ""}${percent(Number(confidence))}` }),
      make("p", { class: "quiet past-file", text: String(name) }),
      make("p", { class: "quiet", text: `${when.format(new Date(Number(at) || 0))}, ${model}` })));
}

export function showPast(onPage) {
  const all = remembered();
  byId("history").hidden = !all.length && !onPage.size;
  byId("history-where").textContent = isDenied()
    ? "This browser lets the page keep nothing, so what you look at is forgotten when you leave."
    : "Labels and small pictures of what you look at are kept in this browser only.";
  byId("past").replaceChildren(...all.filter((entry) => !onPage.has(entry.id)).map(item));
}
