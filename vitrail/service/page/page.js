/* global make, percent */
// The page of the service: pictures come in by many ways, each gets a card, and what was seen is remembered here.

import { sizeOf, showModel } from "./about.js";
import { offerCamera } from "./camera.js";
import { busy, Card, wordsOf } from "./card.js";
import { forget, onChange, remember, thumbnail } from "./history.js";
import { showPast } from "./past.js";
import { Queue } from "./queue.js";
import { ask, Refusal } from "./service.js";

const byId = (id) => document.getElementById(id);
const TOLD = 20; // sentences that a screen reader may still want to go back to
const cards = new Map(); // by the id of what is remembered of them
let model = null;
let round = 0; // what was asked for before all was forgotten is not remembered

function tell(sentence) {
  byId("told").append(make("p", { text: sentence }));
  while (byId("told").childElementCount > TOLD) byId("told").firstChild.remove();
}

function trouble(sentence) {
  byId("trouble").textContent = sentence;
  byId("trouble").hidden = !sentence;
  if (sentence) byId("trouble").scrollIntoView({ block: "nearest" });
}

const queue = new Queue((done, total) => {
  byId("progress").hidden = done === total;
  byId("progress-said").textContent = `${done} of ${total} ${total === 1 ? "picture" : "pictures"} done`;
  byId("progress-bar").max = Math.max(1, total);
  byId("progress-bar").value = done;
});

function refresh() {
  byId("results").hidden = !cards.size;
  showPast(cards);
}

function checked(file) {
  if (!file.size) throw new Refusal({ code: "bad_image", message: "This file is empty." });
  const most = model.limits.bytes;
  if (file.size > most) throw new Refusal({ code: "too_large", message: `This file has ${sizeOf(file.size)}; the server takes at most ${sizeOf(most)}.`, advice: `Make it smaller: the model looks at ${model.input_size[1]} \u00d7 ${model.input_size[0]} pixels anyway.` });
}

async function look(id, card, mine) {
  const { file } = card;
  try {
    checked(file);
    card.wait("Sending", 0);
    const small = thumbnail(file);
    const answer = await ask("v1/predict?top=5", {
      body: file,
      onSent: (share) => (share < 1 ? card.wait("Sending", share) : card.wait("The model is looking")),
      onWait: ({ seconds, attempt, tries }) => {
        card.wait(`${busy(seconds)} (${attempt} of ${tries})`);
        tell(`${file.name}: ${busy(seconds)}.`);
      },
    });
    const prediction = answer.predictions[0];
    if (prediction.error) throw new Refusal(prediction.error);
    const label = wordsOf(prediction, model.several), { confidence, unknown } = prediction;
    const thumb = await small;
    if (mine !== round) return;
    card.told(prediction);
    tell(unknown ? `${file.name}: unknown. The nearest label is ${label}.` : `${file.name}: ${label}, ${percent(confidence)}.`);
    remember({ id, at: Date.now(), name: file.name, label, confidence, unknown, thumb, model: model.name });
    refresh();
  } catch (error) {
    card.refused(error, () => queue.add(() => look(id, card, mine)));
    tell(`${file.name}: no answer. ${error.message}`);
  }
}

function removeCard(id, card) {
  const neighbour = card.element.nextElementSibling ?? card.element.previousElementSibling;
  card.remove();
  cards.delete(id);
  refresh();
  (neighbour?.querySelector(".remove") ?? byId("files")).focus();
}

function receive(files) {
  trouble("");
  if (!model || !files.length) return;
  const added = [...files].map((file) => {
    const id = `${Date.now()}-${Math.random()}`, card = new Card(file, model, () => removeCard(id, card)), mine = round;
    cards.set(id, card);
    queue.add(() => look(id, card, mine));
    return card.element;
  });
  byId("cards").prepend(...added); // the newest first, in the order in which they were chosen
  refresh();
  byId("results").scrollIntoView({ block: "nearest", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
}

function forgetAll() {
  round += 1;
  for (const card of cards.values()) card.remove();
  cards.clear();
  forget();
  refresh();
  tell("Everything is forgotten.");
  byId("files").focus();
}

// What is dropped: files, but no folders and no addresses.
function dropped(transfer) {
  const folders = [...transfer.items].filter((item) => item.webkitGetAsEntry?.()?.isDirectory).map((item) => item.getAsFile()?.name);
  const files = [...transfer.files].filter((file) => !folders.includes(file.name));
  receive(files);
  if (folders.length) trouble("Folders cannot be dropped here: choose the pictures inside.");
  else if (!files.length) trouble("That was no file. Save the picture first, or copy it and paste it here.");
}

function listen() {
  byId("files").addEventListener("change", (event) => {
    receive(event.target.files);
    event.target.value = ""; // so that the same one can be chosen again
  });
  const over = (on) => byId("drop").classList.toggle("over", on), field = (event) => event.target.matches?.("input");
  addEventListener("dragover", (event) => {
    if (field(event)) return;
    event.preventDefault(); // or the browser would leave the page for the file
    over(true);
  });
  addEventListener("dragleave", (event) => event.relatedTarget === null && over(false));
  addEventListener("drop", (event) => {
    over(false);
    if (field(event)) return;
    event.preventDefault();
    dropped(event.dataTransfer);
  });
  addEventListener("paste", (event) => {
    const found = [...event.clipboardData.files];
    if (!found.length) return;
    event.preventDefault();
    receive(found.map((file) => (file.name === "image.png" ? new File([file], "Pasted picture.png", { type: file.type }) : file)));
  });
  byId("forget").addEventListener("click", forgetAll);
  onChange(refresh);
  offerCamera((file) => receive([file]), trouble);
}

async function begin() {
  listen();
  model = await ask("v1/model");
  showModel(model);
  byId("work").hidden = false;
  refresh();
  document.documentElement.dataset.ready = "yes";
}

begin().catch((error) => trouble(`${error.message} ${error.advice ?? error.hint ?? ""}`));
