// Requests to the service: the token, waiting where it is busy, and every refusal as an error in words.

const TRIES = 5;
const LONGEST_WAIT = 30; // seconds
const WHERE = "vitrail.token";
const UNKNOWN_TOKEN = "The server does not know this token. Look for a letter too many or too few.";

export class Refusal extends Error {
  constructor({ code, message, hint, advice }) {
    super(message);
    Object.assign(this, { code, hint, advice }); // `advice` is a whole sentence of the page itself
  }

  // Whether the same picture may well be accepted a little later.
  get passing() {
    return ["too_busy", "draining", "deadline", "starting", "unreachable"].includes(this.code);
  }
}

// A tab's storage, or none where it is denied: the token then lives as long as the page.
function remembered() {
  try {
    return sessionStorage.getItem(WHERE);
  } catch {
    return null;
  }
}

let token = remembered();

function remember(value) {
  token = value;
  try {
    sessionStorage.setItem(WHERE, value);
  } catch {
    // The page still knows it.
  }
}

// One form for however many requests were refused; all go on once a token is given.
let asking = null;

function askToken(refused) {
  if (token !== refused) return Promise.resolve(); // another request has been given one in the meantime
  asking ??= new Promise((given) => {
    const gate = document.getElementById("gate"), form = document.getElementById("gate-form"), input = document.getElementById("token");
    const wrong = document.getElementById("gate-wrong");
    wrong.textContent = refused === null ? "" : UNKNOWN_TOKEN;
    gate.hidden = false;
    input.value = "";
    input.focus();
    form.onsubmit = (event) => {
      event.preventDefault();
      const value = input.value.trim();
      if (!/^[\x20-\x7e]+$/.test(value)) return void (wrong.textContent = UNKNOWN_TOKEN); // no header can hold it
      remember(value);
      gate.hidden = true;
      asking = null;
      given();
    };
  });
  return asking;
}

// One request; `fetch` would not tell how much has been sent.
function send(method, path, body, onSent) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open(method, path);
    if (token !== null) request.setRequestHeader("Authorization", `Bearer ${token}`);
    if (body) request.setRequestHeader("Content-Type", body.type || "application/octet-stream");
    if (body && onSent) request.upload.addEventListener("progress", (event) => event.lengthComputable && onSent(event.loaded / event.total));
    request.addEventListener("load", () => resolve(request));
    request.addEventListener("error", () => reject(new Refusal({ code: "unreachable", message: "The server cannot be reached, or the file cannot be read any more.", advice: "Look whether vitrail serve still runs, then try again." })));
    request.send(body);
  });
}

function parsed(request) {
  try {
    return JSON.parse(request.responseText);
  } catch {
    return null;
  }
}

// `Retry-After` as seconds: a number, a date, or nothing at all.
function waitOf(request, attempt) {
  const told = request.getResponseHeader("Retry-After");
  const seconds = told === null ? 2 ** attempt : /^\d+$/.test(told) ? Number(told) : (Date.parse(told) - Date.now()) / 1000;
  return Math.min(LONGEST_WAIT, Math.max(0.2, Number.isFinite(seconds) ? seconds : 2 ** attempt));
}

// What the service answers. `onSent` hears the share that is sent, `onWait` how long the page waits for a busy service.
export async function ask(path, { body = null, onSent, onWait } = {}) {
  for (let attempt = 1; ; ) {
    const used = token, request = await send(body ? "POST" : "GET", path, body, onSent);
    if (request.status === 401) {
      await askToken(used);
      continue;
    }
    const answer = parsed(request);
    if (request.status >= 200 && request.status < 300 && answer !== null) return answer;
    if ((request.status === 429 || request.status === 503) && attempt < TRIES) {
      const seconds = waitOf(request, attempt);
      attempt += 1;
      onWait?.({ seconds, attempt, tries: TRIES });
      await new Promise((resume) => setTimeout(resume, 1000 * seconds));
      continue;
    }
    throw new Refusal(answer?.error ?? { code: "bad_answer", message: `The server answered ${request.status}, and nothing that this page understands.`, advice: "Look at what the server printed." });
  }
}
