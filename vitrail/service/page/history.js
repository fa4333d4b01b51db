// The history of predictions with thumbnails, stored in this browser only.

const STORAGE_KEY = "vitrail.history";
const MAX_ENTRIES = 60;
const THUMBNAIL_SIDE = 144; // pixels

let entries = []; // the only copy where storage is denied
let storageDenied = false;

function read() {
  try {
    const stored = JSON.parse(localStorage.getItem(STORAGE_KEY) ?? "[]");
    return Array.isArray(stored) ? stored.filter((entry) => entry && typeof entry.label === "string") : [];
  } catch (error) {
    storageDenied = !(error instanceof SyntaxError);
    return storageDenied ? entries : [];
  }
}

function write() {
  while (!storageDenied) {
    try {
      return localStorage.setItem(STORAGE_KEY, JSON.stringify(entries));
    } catch {
      if (!entries.length) storageDenied = true; // not even an empty list fits
      else entries = entries.slice(0, Math.floor(entries.length / 2)); // full: drop the older half
    }
  }
}

export const isStorageDenied = () => storageDenied;

export function loadHistory() {
  return (entries = read());
}

export function addToHistory(entry) {
  entries = [entry, ...read()].slice(0, MAX_ENTRIES);
  const all = entries;
  write();
  if (storageDenied) entries = all;
}

export function clearHistory() {
  entries = [];
  try {
    localStorage.removeItem(STORAGE_KEY);
  } catch {
    storageDenied = true;
  }
}

// Call `listener` when another tab changes the history.
export function onHistoryChange(listener) {
  addEventListener("storage", (event) => (event.key === STORAGE_KEY || event.key === null) && listener());
}

// A thumbnail as a data URL, or null if this browser cannot decode the image.
export async function createThumbnail(file) {
  try {
    const image = await createImageBitmap(file), scale = Math.min(1, THUMBNAIL_SIDE / Math.min(image.width, image.height));
    const canvas = document.createElement("canvas"), size = [image.width, image.height].map((length) => Math.max(1, Math.min(2 * THUMBNAIL_SIDE, Math.round(length * scale))));
    [canvas.width, canvas.height] = size;
    const context = canvas.getContext("2d"); // very elongated images are cropped to their centre
    const crop = [size[0] / scale, size[1] / scale];
    context.drawImage(image, (image.width - crop[0]) / 2, (image.height - crop[1]) / 2, ...crop, 0, 0, ...size);
    image.close();
    return canvas.toDataURL("image/jpeg", 0.72);
  } catch {
    return null;
  }
}
