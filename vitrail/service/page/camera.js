// A photo from the camera, which is on only while its panel is open.

const byId = (id) => document.getElementById(id);
let stream = null;
let session = 0; // a stream that starts after its panel was closed is stopped at once

function close() {
  session += 1;
  for (const track of stream?.getTracks() ?? []) track.stop();
  stream = null;
  byId("camera-video").srcObject = null;
  byId("camera-panel").hidden = true;
}

const REASONS = {
  NotAllowedError: "This browser blocks the camera. Allow it in the address bar, then try again.",
  NotFoundError: "No camera found.",
  NotReadableError: "Another program is using the camera. Close that program, then try again.",
};

async function open(onError) {
  const current = ++session;
  try {
    const opened = await navigator.mediaDevices.getUserMedia({ video: { facingMode: { ideal: "environment" } }, audio: false });
    if (current !== session) return opened.getTracks().forEach((track) => track.stop());
    stream = opened;
    byId("camera-panel").hidden = false;
    byId("camera-video").srcObject = stream;
    byId("camera-capture").focus();
  } catch (error) {
    if (current === session) onError(REASONS[error.name] ?? `The camera cannot be used: ${error.message}`);
  }
}

function captureFrame(video) {
  const canvas = document.createElement("canvas");
  canvas.width = video.videoWidth;
  canvas.height = video.videoHeight;
  canvas.getContext("2d").drawImage(video, 0, 0);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.92));
}

// Offered only if the browser supports it: not for pages loaded over plain HTTP from another machine.
export function offerCamera(onImage, onError) {
  if (!navigator.mediaDevices?.getUserMedia) return;
  const button = byId("camera-open"), video = byId("camera-video");
  button.hidden = false;
  button.addEventListener("click", () => open(onError));
  const leave = () => {
    close();
    button.focus();
  };
  byId("camera-close").addEventListener("click", leave);
  byId("camera-panel").addEventListener("keydown", (event) => event.key === "Escape" && leave());
  byId("camera-capture").addEventListener("click", async () => {
    if (!video.videoWidth) return; // no frame yet
    const content = await captureFrame(video);
    leave();
    onImage(new File([content], "Camera photo.jpg", { type: "image/jpeg" }));
  });
  addEventListener("pagehide", close);
}
