// What was looked at before, with small thumbnails, in this browser only.

const WHERE = "vitrail.history";
const MOST = 60;
const SIDE = 144; // pixels of a thumbnail

let entries = []; // where storage is denied, the page alone remembers
let denied = false;

function stored() {
  try {
    const found = JSON.parse(localStorage.getItem(WHERE) ?? "[]");
    return Array.isArray(found) ? found.filter((entry) => entry && typeof entry.label === "string") : [];
  } catch (error) {
    denied = !(error instanceof SyntaxError);
    return denied ? entries : [];
  }
}

function store() {
  while (!denied) {
    try {
      return localStorage.setItem(WHERE, JSON.stringify(entries));
    } catch {
      if (!entries.length) denied = true; // no room even for nothing
      else entries = entries.slice(0, Math.floor(entries.length / 2)); // full: the older half goes
    }
  }
}

export const isDenied = () => denied;

export function remembered() {
  return (entries = stored());
}

export function remember(entry) {
  entries = [entry, ...stored()].slice(0, MOST);
  const all = entries;
  store();
  if (denied) entries = all;
}

export function forget() {
  entries = [];
  try {
    localStorage.removeItem(WHERE);
  } catch {
    denied = true;
  }
}

// Another tab of this browser remembers or forgets.
export function onChange(listener) {
  addEventListener("storage", (event) => (event.key === WHERE || event.key === null) && listener());
}

// A picture as a small address, or null where this browser cannot show it.
export async function thumbnail(file) {
  try {
    const image = await createImageBitmap(file), scale = Math.min(1, SIDE / Math.min(image.width, image.height));
    const canvas = document.createElement("canvas"), side = [image.width, image.height].map((length) => Math.max(1, Math.min(2 * SIDE, Math.round(length * scale))));
    [canvas.width, canvas.height] = side;
    const pen = canvas.getContext("2d"); // the middle of a picture that is very long
    const part = [side[0] / scale, side[1] / scale];
    pen.drawImage(image, (image.width - part[0]) / 2, (image.height - part[1]) / 2, ...part, 0, 0, ...side);
    image.close();
    return canvas.toDataURL("image/jpeg", 0.72);
  } catch {
    return null;
  }
}
