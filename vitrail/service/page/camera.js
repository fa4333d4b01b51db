// One picture from the camera, which is on only while its panel is open.

const byId = (id) => document.getElementById(id);
let stream = null;
let opening = 0; // a camera that comes up after its panel was closed is put out at once

function close() {
  opening += 1;
  for (const track of stream?.getTracks() ?? []) track.stop();
  stream = null;
  byId("film").srcObject = null;
  byId("shoot").hidden = true;
}

const REASONS = {
  NotAllowedError: "This browser may not use the camera. Allow it in the address bar, then try again.",
  NotFoundError: "No camera was found.",
  NotReadableError: "The camera is in use by another program. Close that, then try again.",
};

async function open(onTrouble) {
  const mine = ++opening;
  try {
    const found = await navigator.mediaDevices.getUserMedia({ video: { facingMode: { ideal: "environment" } }, audio: false });
    if (mine !== opening) return found.getTracks().forEach((track) => track.stop());
    stream = found;
    byId("shoot").hidden = false;
    byId("film").srcObject = stream;
    byId("take").focus();
  } catch (error) {
    if (mine === opening) onTrouble(REASONS[error.name] ?? `The camera cannot be used: ${error.message}`);
  }
}

function taken(film) {
  const canvas = document.createElement("canvas");
  canvas.width = film.videoWidth;
  canvas.height = film.videoHeight;
  canvas.getContext("2d").drawImage(film, 0, 0);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.92));
}

// Offered only where there is one to ask for: a browser gives none to a page that came over plain HTTP from elsewhere.
export function offerCamera(onPicture, onTrouble) {
  if (!navigator.mediaDevices?.getUserMedia) return;
  const button = byId("camera"), film = byId("film");
  button.hidden = false;
  button.addEventListener("click", () => open(onTrouble));
  const leave = () => {
    close();
    button.focus();
  };
  byId("leave").addEventListener("click", leave);
  byId("shoot").addEventListener("keydown", (event) => event.key === "Escape" && leave());
  byId("take").addEventListener("click", async () => {
    if (!film.videoWidth) return; // not a frame yet
    const content = await taken(film);
    leave();
    onPicture(new File([content], "From the camera.jpg", { type: "image/jpeg" }));
  });
  addEventListener("pagehide", close);
}
