/* global make, percent, capital */
// The page of the service: images are dropped, pasted, chosen or photographed, and each gets a card.

import { ApiError, callApi } from "./api.js";
import { offerCamera } from "./camera.js";
import { adviceFor, busyText, Card, labelText } from "./card.js";
import { showHistory } from "./history-list.js";
import { addToHistory, clearHistory, createThumbnail, onHistoryChange } from "./history.js";
import { formatSize, showModel } from "./model-info.js";
import { Queue } from "./queue.js";

const byId = (id) => document.getElementById(id);
const MAX_ANNOUNCEMENTS = 20; // that a screen reader can go back to
const cards = new Map(); // by the id of their history entry
let model = null;
let generation = 0; // predictions requested before "Clear all" are dropped

function announce(sentence) {
  byId("announcements").append(make("p", { text: sentence }));
  while (byId("announcements").childElementCount > MAX_ANNOUNCEMENTS) byId("announcements").firstChild.remove();
}

function showError(sentence) {
  byId("error-banner").textContent = sentence;
  byId("error-banner").hidden = !sentence;
  if (sentence) byId("error-banner").scrollIntoView({ block: "nearest" });
}

const queue = new Queue((done, total) => {
  byId("progress").hidden = done === total;
  byId("progress-text").textContent = `${done} of ${total} ${total === 1 ? "image" : "images"} done`;
  byId("progress-bar").max = Math.max(1, total);
  byId("progress-bar").value = done;
});

function refresh() {
  byId("results").hidden = !cards.size;
  showHistory(cards);
}

function checkSize(file) {
  if (!file.size) throw new ApiError({ code: "bad_image", message: "This file is empty." });
  const limit = model.limits.bytes;
  if (file.size > limit) throw new ApiError({ code: "too_large", message: `This file has ${formatSize(file.size)}; the server accepts at most ${formatSize(limit)}.`, advice: `Try a smaller image: the model's input is ${model.input_size[1]} \u00d7 ${model.input_size[0]} pixels anyway.` });
}

async function predict(id, card, startedIn) {
  const { file } = card;
  try {
    checkSize(file);
    card.showWaiting("Uploading", 0);
    const pendingThumbnail = createThumbnail(file);
    const response = await callApi("v1/predict?top=5", {
      body: file,
      onUpload: (fraction) => (fraction < 1 ? card.showWaiting("Uploading", fraction) : card.showWaiting("Classifying")),
      onRetry: ({ seconds, attempt, maxAttempts }) => {
        card.showWaiting(`${busyText(seconds)} (${attempt} of ${maxAttempts})`);
        announce(`${file.name}: ${busyText(seconds)}.`);
      },
    });
    const prediction = response.predictions[0];
    if (prediction.error) throw new ApiError(prediction.error);
    const label = labelText(prediction, model.multi_label), { confidence, unknown } = prediction;
    const thumb = await pendingThumbnail;
    if (startedIn !== generation) return;
    card.showPrediction(prediction);
    announce(unknown ? `${file.name}: unknown. Closest label: ${label}.` : `${file.name}: ${label}, ${percent(confidence)}.`);
    addToHistory({ id, at: Date.now(), name: file.name, label, confidence, unknown, thumb, model: model.name });
    refresh();
  } catch (error) {
    card.showError(error, () => queue.add(() => predict(id, card, startedIn)));
    announce(`${file.name}: no prediction. ${capital(error.message)}`);
  }
}

function removeCard(id, card) {
  const neighbour = card.element.nextElementSibling ?? card.element.previousElementSibling;
  card.remove();
  cards.delete(id);
  refresh();
  (neighbour?.querySelector(".remove") ?? byId("file-input")).focus();
}

function addFiles(files) {
  showError("");
  if (!model || !files.length) return;
  const startedIn = generation;
  const added = [...files].map((file) => {
    const id = `${Date.now()}-${Math.random()}`, card = new Card(file, model, () => removeCard(id, card));
    cards.set(id, card);
    queue.add(() => predict(id, card, startedIn));
    return card.element;
  });
  byId("cards").prepend(...added); // newest first, in the order in which they were chosen
  refresh();
  byId("results").scrollIntoView({ block: "nearest", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
}

function clearAll() {
  generation += 1;
  for (const card of cards.values()) card.remove();
  cards.clear();
  clearHistory();
  refresh();
  announce("All images and history cleared.");
  byId("file-input").focus();
}

// Accepts files, but not folders or links.
function onDrop(transfer) {
  const folders = [...transfer.items].filter((item) => item.webkitGetAsEntry?.()?.isDirectory).map((item) => item.getAsFile()?.name);
  const files = [...transfer.files].filter((file) => !folders.includes(file.name));
  addFiles(files);
  if (folders.length) showError("Folders cannot be dropped here. Choose the images inside.");
  else if (!files.length) showError("That was not a file. Save the image first, or copy and paste it here.");
}

function addListeners() {
  byId("file-input").addEventListener("change", (event) => {
    addFiles(event.target.files);
    event.target.value = ""; // so that the same file can be chosen again
  });
  const highlight = (on) => byId("drop-zone").classList.toggle("over", on), isInput = (event) => event.target.matches?.("input");
  addEventListener("dragover", (event) => {
    if (isInput(event)) return;
    event.preventDefault(); // or the browser would navigate to the file
    highlight(true);
  });
  addEventListener("dragleave", (event) => event.relatedTarget === null && highlight(false));
  addEventListener("drop", (event) => {
    highlight(false);
    if (isInput(event)) return;
    event.preventDefault();
    onDrop(event.dataTransfer);
  });
  addEventListener("paste", (event) => {
    const files = [...event.clipboardData.files];
    if (!files.length) return;
    event.preventDefault();
    addFiles(files.map((file) => (file.name === "image.png" ? new File([file], "Pasted image.png", { type: file.type }) : file)));
  });
  byId("history-clear").addEventListener("click", clearAll);
  onHistoryChange(refresh);
  offerCamera((file) => addFiles([file]), showError);
}

async function start() {
  addListeners();
  model = await callApi("v1/model");
  showModel(model);
  byId("workspace").hidden = false;
  refresh();
  document.documentElement.dataset.ready = "yes";
}

start().catch((error) => showError(`${error.message} ${adviceFor(error)}`));
