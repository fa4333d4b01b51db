// Requests to the service: they carry the token, retry while the service is busy, and throw an ApiError on failure.

const MAX_ATTEMPTS = 5;
const MAX_WAIT = 30; // seconds
const TOKEN_KEY = "vitrail.token";
const WRONG_TOKEN = "The server rejected this token. Check it for typos.";

export class ApiError extends Error {
  constructor({ code, message, hint, advice }) {
    super(message);
    Object.assign(this, { code, hint, advice }); // `hint` follows "Try", `advice` is a whole sentence
  }

  // Whether the same request may succeed a little later.
  get temporary() {
    return ["too_busy", "draining", "deadline", "starting", "unreachable"].includes(this.code);
  }
}

// The tab's storage; where it is denied, the token lasts as long as the page.
function loadToken() {
  try {
    return sessionStorage.getItem(TOKEN_KEY);
  } catch {
    return null;
  }
}

let token = loadToken();

function storeToken(value) {
  token = value;
  try {
    sessionStorage.setItem(TOKEN_KEY, value);
  } catch {
    // The variable still has it.
  }
}

// One form for all rejected requests; they all resume once a token is entered.
let tokenPrompt = null;

function promptForToken(rejected) {
  if (token !== rejected) return Promise.resolve(); // entered for another request in the meantime
  tokenPrompt ??= new Promise((resolve) => {
    const panel = document.getElementById("token-panel"), form = document.getElementById("token-form"), input = document.getElementById("token");
    const error = document.getElementById("token-error");
    error.textContent = rejected === null ? "" : WRONG_TOKEN;
    panel.hidden = false;
    input.value = "";
    input.focus();
    form.onsubmit = (event) => {
      event.preventDefault();
      const value = input.value.trim();
      if (!/^[\x20-\x7e]+$/.test(value)) return void (error.textContent = WRONG_TOKEN); // not valid in a header
      storeToken(value);
      panel.hidden = true;
      tokenPrompt = null;
      resolve();
    };
  });
  return tokenPrompt;
}

// One request, by XMLHttpRequest because `fetch` does not report upload progress.
function send(method, path, body, onUpload) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open(method, path);
    if (token !== null) request.setRequestHeader("Authorization", `Bearer ${token}`);
    if (body) request.setRequestHeader("Content-Type", body.type || "application/octet-stream");
    if (body && onUpload) request.upload.addEventListener("progress", (event) => event.lengthComputable && onUpload(event.loaded / event.total));
    request.addEventListener("load", () => resolve(request));
    request.addEventListener("error", () => reject(new ApiError({ code: "unreachable", message: "The server cannot be reached, or the file can no longer be read.", advice: "Check that vitrail serve is still running, then try again." })));
    request.send(body);
  });
}

function parseJson(request) {
  try {
    return JSON.parse(request.responseText);
  } catch {
    return null;
  }
}

// `Retry-After` in seconds: it may be a number, a date or missing.
function retryDelay(request, attempt) {
  const header = request.getResponseHeader("Retry-After");
  const seconds = header === null ? 2 ** attempt : /^\d+$/.test(header) ? Number(header) : (Date.parse(header) - Date.now()) / 1000;
  return Math.min(MAX_WAIT, Math.max(0.2, Number.isFinite(seconds) ? seconds : 2 ** attempt));
}

// The JSON response. `onUpload` gets the fraction sent, `onRetry` the delay before the next attempt.
export async function callApi(path, { body = null, onUpload, onRetry } = {}) {
  for (let attempt = 1; ; ) {
    const usedToken = token, request = await send(body ? "POST" : "GET", path, body, onUpload);
    if (request.status === 401) {
      await promptForToken(usedToken);
      continue;
    }
    const response = parseJson(request);
    if (request.status >= 200 && request.status < 300 && response !== null) return response;
    if ((request.status === 429 || request.status === 503) && attempt < MAX_ATTEMPTS) {
      const seconds = retryDelay(request, attempt);
      attempt += 1;
      onRetry?.({ seconds, attempt, maxAttempts: MAX_ATTEMPTS });
      await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
      continue;
    }
    throw new ApiError(response?.error ?? { code: "bad_response", message: `The server returned status ${request.status} and a response that this page cannot read.`, advice: "Check the server's log." });
  }
}
