/* global make */
// The description of the model: facts, labels, model card.

import { renderMarkdown } from "./markdown.js";

const byId = (id) => document.getElementById(id);
const SEARCH_FROM = 60; // labels; a shorter list needs no search

const formatNumber = (value) => value.toLocaleString("en");
export const formatSize = (bytes) => (bytes < 2 ** 20 ? `${Math.ceil(bytes / 2 ** 10)}\u00a0kB` : `${formatNumber(Math.round((10 * bytes) / 2 ** 20) / 10)}\u00a0MB`);

function factsOf(model) {
  return [
    ["Name", model.name],
    ["Version", model.version],
    ["Engine", model.engine],
    ["Input size", `${model.input_size[1]} \u00d7 ${model.input_size[0]} pixels`],
    ["Classes", `${formatNumber(model.num_classes)}, ${model.multi_label ? "any number per image" : "one per image"}`],
    ["Confidence", model.calibrated ? "Calibrated: of predictions with 80\u00a0% confidence, about 80\u00a0% should be right" : "Not calibrated: it ranks labels, but is not a probability of being right"],
    ["Unknown images", model.knows_unknown ? "Detected: images unlike the training data are flagged as unknown" : "Not detected: every image gets a label, even one unlike the training data"],
    ["Explanations", model.explains.length ? "Available for every image" : "Not available"],
  ];
}

function showLabels(labels) {
  const query = byId("label-search").value.trim().toLowerCase();
  const matches = labels.filter((label) => label.toLowerCase().includes(query));
  byId("label-list").replaceChildren(...matches.map((label) => make("li", { text: label })));
  byId("label-count").textContent = query ? `${formatNumber(matches.length)} of ${formatNumber(labels.length)} labels match \u201c${query}\u201d` : "";
}

export function showModel(model) {
  document.title = `${model.name}: Vitrail`;
  const link = byId("model-link");
  link.textContent = model.name;
  link.hidden = false;
  link.addEventListener("click", () => byId("model-title").focus());
  byId("model-facts").replaceChildren(...factsOf(model).map(([name, value]) => make("div", {}, make("dt", { text: name }), make("dd", { text: value }))));
  byId("model-labels").querySelector("summary").textContent = `${formatNumber(model.labels.length)} labels`;
  byId("model-labels").open = model.labels.length <= 12;
  for (const part of ["label-search", "label-count"]) byId(part).hidden = model.labels.length <= SEARCH_FROM;
  document.querySelector("label[for=label-search]").hidden = model.labels.length <= SEARCH_FROM;
  byId("label-search").addEventListener("input", () => showLabels(model.labels));
  showLabels(model.labels);
  byId("model-card").hidden = !model.card;
  if (model.card) byId("model-card-text").replaceChildren(...renderMarkdown(model.card));
  byId("upload-limit").textContent = `Up to ${formatSize(model.limits.bytes)} per image. Images are sent to this server only.`;
  byId("intro").textContent = model.explains.length ? "Add images to see its labels, its confidence, and the regions it relies on." : "Add images to see its labels and its confidence.";
  byId("no-explanations").hidden = model.explains.length > 0;
  byId("no-explanations").textContent = `Explanations are not available for this model (${model.engine}).`;
}
