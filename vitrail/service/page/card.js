/* global make, percent, bar, capital, View */
// The card of one image: its preview, prediction and explanation.

import { callApi } from "./api.js";

const ADVICE = {
  bad_image: "Try another image, or re-save this one as JPEG or PNG.",
  too_large: "Try a smaller image.",
  too_busy: "Try again in a moment.",
  draining: "The server is shutting down. Try again once it is back.",
  deadline: "Try again in a moment, or with a smaller image.",
};
const UNLIKE = "This image is unlike those the model was trained on, so its label means little.";
const SHOW = "Show explanation", HIDE = "Hide explanation";
let numCards = 0;

export const adviceFor = (error) => error.advice ?? (error.hint ? `Try ${error.hint}` : (ADVICE[error.code] ?? ""));

// All labels of an image in one line.
export function labelText(prediction, multiLabel) {
  if (!multiLabel) return prediction.label;
  return prediction.labels.length ? prediction.labels.join(", ") : "no label";
}

export class Card {
  constructor(file, model, onRemove) {
    Object.assign(this, { file, model, view: null, id: `image-${++numCards}` });
    this.url = URL.createObjectURL(file);
    const image = make("img", { src: this.url, alt: "", on: { error: () => image.replaceWith(make("span", { class: "quiet", text: "No preview" })) } });
    this.body = make("div", { class: "card-body" });
    this.removeButton = make("button", { type: "button", class: "remove", "aria-label": `Remove ${file.name}`, title: "Remove", text: "\u00d7", on: { click: onRemove } });
    this.element = make("li", { class: "card", id: this.id },
      make("div", { class: "card-image" }, image),
      make("div", { class: "card-content" }, make("div", { class: "card-header" }, make("p", { class: "file-name", text: file.name }), this.removeButton), this.body));
    this.showWaiting("Waiting");
  }

  setBody(...children) {
    this.body.replaceChildren(...children);
  }

  showWaiting(text, fraction = null) {
    this.element.setAttribute("aria-busy", "true");
    const line = make("p", { class: "quiet", text });
    this.setBody(line, fraction === null ? make("div", { class: "shimmer", "aria-hidden": "true" }) : bar(fraction));
  }

  showPrediction(prediction) {
    const multiLabel = this.model.multi_label, { unknown, labels, top } = prediction;
    this.element.setAttribute("aria-busy", "false");
    const heading = multiLabel ? this.multiLabelHeading(labels, unknown) : this.singleLabelHeading(prediction);
    const bars = top.map(({ label, confidence }) => make("li", {}, make("span", { text: label }), make("span", { class: "percentage", text: percent(confidence) }), bar(confidence)));
    this.setBody(...heading, make("ol", { class: "bars", "aria-label": multiLabel ? "Top labels, each with its own confidence" : "Top labels" }, ...bars), ...this.explanationButton());
    this.element.classList.toggle("unknown", unknown);
  }

  singleLabelHeading({ label, confidence, unknown }) {
    if (!unknown) return [make("h3", { class: "prediction", text: label }), make("p", { class: "confidence", text: `Confidence ${percent(confidence)}` })];
    return [make("h3", { class: "prediction", text: "Unknown" }), make("p", { class: "warning", text: UNLIKE }), make("p", { class: "confidence", text: `Closest label: ${label}, ${percent(confidence)}` })];
  }

  multiLabelHeading(labels, unknown) {
    const chips = labels.length ? labels.map((label) => make("span", { class: "chip", text: label })) : ["No label applies"];
    return [make("h3", { class: "prediction" }, ...(unknown ? ["Unknown"] : chips.flatMap((chip) => [chip, " "]))), unknown ? make("p", { class: "warning", text: UNLIKE }) : null].filter(Boolean);
  }

  // The button that toggles the explanation; its container is added to the card.
  explanationButton() {
    if (!this.model.explains.length) return [];
    const container = make("div", { class: "card-view", id: `${this.id}-view`, hidden: true });
    const button = make("button", { type: "button", class: "explain", text: SHOW, "aria-expanded": "false", "aria-controls": container.id, on: { click: () => this.toggleExplanation(button, container) } });
    this.container?.remove();
    this.container = container;
    this.element.append(container);
    return [button];
  }

  async toggleExplanation(button, container) {
    const opens = container.hidden;
    if (!opens) this.view?.stop?.();
    container.hidden = !opens;
    this.element.classList.toggle("open", opens);
    button.setAttribute("aria-expanded", opens);
    button.textContent = opens ? HIDE : SHOW;
    if (!opens || this.view) return;
    this.view = {}; // request it only once
    container.replaceChildren(make("p", { class: "quiet", role: "status", text: "Computing the explanation\u2026" }), make("div", { class: "shimmer", "aria-hidden": "true" }));
    try {
      const data = await callApi("v1/explain?form=view", { body: this.file, onRetry: ({ seconds }) => (container.firstChild.textContent = busyText(seconds)) });
      this.view = await View.open(container, data, { id: `${this.id}-`, heading: "h4" });
    } catch (error) {
      this.view = null;
      container.replaceChildren(...this.errorMessage("No explanation", error));
    }
  }

  errorMessage(title, error) {
    return [make("h3", { class: "prediction error", text: title }), make("p", { text: capital(error.message) }), make("p", { class: "quiet", text: adviceFor(error) })];
  }

  showError(error, onRetry) {
    this.element.setAttribute("aria-busy", "false");
    this.element.classList.add("failed");
    const again = make("button", { type: "button", text: "Try again", on: { click: () => {
      this.element.classList.remove("failed");
      this.removeButton.focus(); // this button is about to disappear
      onRetry();
    } } });
    this.setBody(...this.errorMessage(error.temporary ? "No response" : "Rejected", error), error.temporary ? again : "");
  }

  remove() {
    this.view?.stop?.();
    this.element.remove();
    URL.revokeObjectURL(this.url);
  }
}

export const busyText = (seconds) => `The server is busy. Retrying in ${Math.ceil(seconds)}\u00a0s`;
