/* global make, percent, bar, capital, View */
// The card of one picture: what it looks like, what the model says to it, and where it looked.

import { ask } from "./service.js";

const HINTS = {
  bad_image: "Try another picture, or open this one elsewhere and save it as JPEG or PNG.",
  too_large: "Make it smaller, then try again.",
  too_busy: "Many are asking at this moment. Try again in a while.",
  draining: "The server is being stopped. Try again once it runs.",
  deadline: "It took too long. Try again in a while, or with a smaller picture.",
};
const UNLIKE = "This picture is unlike those that the model knows, so its label means little.";
let made = 0;

// What to try: the server's hints are what follows "try", the page's own are whole sentences.
const hintOf = (error) => error.advice ?? (error.hint ? `Try this: ${error.hint}` : (HINTS[error.code] ?? ""));

// All labels of a picture in one line.
export function wordsOf(prediction, several) {
  if (!several) return prediction.label;
  return prediction.labels.length ? prediction.labels.join(", ") : "none of its labels";
}

export class Card {
  constructor(file, model, onRemove) {
    Object.assign(this, { file, model, view: null, id: `picture-${++made}` });
    this.address = URL.createObjectURL(file);
    const image = make("img", { src: this.address, alt: "", on: { error: () => image.replaceWith(make("span", { class: "quiet", text: "This browser cannot show it" })) } });
    this.body = make("div", { class: "card-body" });
    this.removal = make("button", { type: "button", class: "remove", "aria-label": `Remove ${file.name}`, title: "Remove", text: "\u00d7", on: { click: onRemove } });
    this.element = make("li", { class: "card", id: this.id },
      make("div", { class: "card-picture" }, image),
      make("div", { class: "card-side" }, make("div", { class: "card-top" }, make("p", { class: "file", text: file.name }), this.removal), this.body));
    this.wait("Waiting for its turn");
  }

  put(...children) {
    this.body.replaceChildren(...children);
  }

  // While nothing is known yet.
  wait(text, share = null) {
    this.element.setAttribute("aria-busy", "true");
    const line = make("p", { class: "quiet", text });
    this.put(line, share === null ? make("div", { class: "shimmer", "aria-hidden": "true" }) : bar(share));
  }

  told(prediction) {
    const { several } = this.model, { unknown, labels, top } = prediction;
    this.element.setAttribute("aria-busy", "false");
    const answer = several ? this.several(labels, unknown) : this.single(prediction);
    const bars = top.map(({ label, confidence }) => make("li", {}, make("span", { text: label }), make("span", { class: "share", text: percent(confidence) }), bar(confidence)));
    this.put(...answer, make("ol", { class: "bars", "aria-label": several ? "The likeliest labels, each with a confidence of its own" : "The likeliest labels" }, ...bars), ...this.showing());
    this.element.classList.toggle("unknown", unknown);
  }

  single({ label, confidence, unknown }) {
    if (!unknown) return [make("h3", { class: "answer", text: label }), make("p", { class: "confidence", text: `Confidence ${percent(confidence)}` })];
    return [make("h3", { class: "answer", text: "Unknown" }), make("p", { class: "verdict", text: UNLIKE }), make("p", { class: "confidence", text: `The nearest label is ${label}, ${percent(confidence)}` })];
  }

  several(labels, unknown) {
    const words = labels.length ? labels.map((label) => make("span", { class: "chip", text: label })) : ["None of its labels"];
    return [make("h3", { class: "answer" }, ...(unknown ? ["Unknown"] : words.flatMap((word) => [word, " "]))), unknown ? make("p", { class: "verdict", text: UNLIKE }) : null].filter(Boolean);
  }

  // The button that opens the view, and the place where it opens.
  showing() {
    if (!this.model.explains.length) return [];
    const place = make("div", { class: "card-view", id: `${this.id}-view`, hidden: true });
    const button = make("button", { type: "button", class: "show", text: "Show what the model looks at", "aria-expanded": "false", "aria-controls": place.id, on: { click: () => this.toggle(button, place) } });
    this.place?.remove();
    this.place = place;
    this.element.append(place);
    return [button];
  }

  async toggle(button, place) {
    const opens = place.hidden;
    if (!opens) this.view?.stop?.();
    place.hidden = !opens;
    this.element.classList.toggle("open", opens);
    button.setAttribute("aria-expanded", opens);
    button.textContent = opens ? "Hide what the model looks at" : "Show what the model looks at";
    if (!opens || this.view) return;
    this.view = {}; // asked for once
    place.replaceChildren(make("p", { class: "quiet", role: "status", text: "Finding out where the model looks\u2026" }), make("div", { class: "shimmer", "aria-hidden": "true" }));
    try {
      const data = await ask("v1/explain?form=view", { body: this.file, onWait: ({ seconds }) => (place.firstChild.textContent = busy(seconds)) });
      this.view = await View.open(place, data, { id: `${this.id}-`, heading: "h4" });
    } catch (error) {
      this.view = null;
      place.replaceChildren(...this.words("This cannot be shown", error));
    }
  }

  words(title, error) {
    return [make("h3", { class: "answer wrong", text: title }), make("p", { text: capital(error.message) }), make("p", { class: "quiet", text: hintOf(error) })];
  }

  refused(error, onRetry) {
    this.element.setAttribute("aria-busy", "false");
    this.element.classList.add("refused");
    const again = make("button", { type: "button", text: "Try again", on: { click: () => {
      this.element.classList.remove("refused");
      this.removal.focus(); // the button goes away
      onRetry();
    } } });
    this.put(...this.words(error.passing ? "No answer" : "Refused", error), error.passing ? again : "");
  }

  remove() {
    this.view?.stop?.();
    this.element.remove();
    URL.revokeObjectURL(this.address);
  }
}

export const busy = (seconds) => `The server is busy. Trying again in ${Math.ceil(seconds)}\u00a0s`;
