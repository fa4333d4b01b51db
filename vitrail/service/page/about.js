/* global make */
// What the page tells of the model.

import { rendered } from "./markdown.js";

const byId = (id) => document.getElementById(id);
const MANY = 60; // labels that are looked through by eye

export const number = (value) => value.toLocaleString("en");
export const sizeOf = (bytes) => (bytes < 2 ** 20 ? `${Math.ceil(bytes / 2 ** 10)}\u00a0kB` : `${number(Math.round((10 * bytes) / 2 ** 20) / 10)}\u00a0MB`);

function facts(model) {
  return [
    ["Name", model.name],
    ["Version", model.version],
    ["Engine", model.engine],
    ["Looks at", `${model.input_size[1]} \u00d7 ${model.input_size[0]} pixels`],
    ["Classes", `${number(model.num_classes)}, ${model.several ? "of which a picture has any number" : "one a picture"}`],
    ["Confidence", model.calibrated ? "Calibrated: of answers given with 80\u00a0%, about 80 in 100 are right" : "Not calibrated: it puts labels in order, but 80\u00a0% need not be right 80 times in 100"],
    ["\u201cUnknown\u201d", model.knows_unknown ? "Says so of pictures unlike those it knows" : "Never says so: every picture gets a label, even of what it has never seen"],
    ["Where it looks", model.explains.length ? "Can be shown for every picture" : "Cannot be shown"],
  ];
}

function showLabels(labels) {
  const wanted = byId("label-search").value.trim().toLowerCase();
  const found = labels.filter((label) => label.toLowerCase().includes(wanted));
  byId("label-list").replaceChildren(...found.map((label) => make("li", { text: label })));
  byId("label-count").textContent = wanted ? `${number(found.length)} of ${number(labels.length)} labels have \u201c${wanted}\u201d in them` : "";
}

export function showModel(model) {
  document.title = `${model.name}: Vitrail`;
  const which = byId("which");
  which.textContent = model.name;
  which.hidden = false;
  which.addEventListener("click", () => byId("model-title").focus());
  byId("facts").replaceChildren(...facts(model).map(([name, value]) => make("div", {}, make("dt", { text: name }), make("dd", { text: value }))));
  byId("labels").querySelector("summary").textContent = `Its ${number(model.labels.length)} labels`;
  byId("labels").open = model.labels.length <= 12;
  for (const part of ["label-search", "label-count"]) byId(part).hidden = model.labels.length <= MANY;
  document.querySelector("label[for=label-search]").hidden = model.labels.length <= MANY;
  byId("label-search").addEventListener("input", () => showLabels(model.labels));
  showLabels(model.labels);
  byId("card").hidden = !model.card;
  if (model.card) byId("card-text").replaceChildren(...rendered(model.card));
  byId("drop-limit").textContent = `Several at once if you like, up to ${sizeOf(model.limits.bytes)} each. They are sent to this server only.`;
  byId("lead").textContent = `Give it pictures. It tells what is in them${model.explains.length ? ", how sure it is, and where it looked." : " and how sure it is."}`;
  byId("unexplained").hidden = model.explains.length > 0;
  byId("unexplained").textContent = `What the model looks at cannot be shown: served as ${model.engine}, it gives answers only.`;
}
