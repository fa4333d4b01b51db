"use strict";
// The view of one text: its tokens in a row, coloured by the attention that the chosen one pays to them.

class TextView {
  constructor(root, maps) {
    Object.assign(this, { root, maps, parts: {}, beforeHover: null });
    const first = maps.maps[0];
    this.state = { map: 0, rollout: false, layer: first.name === "cross" ? -1 : first.layers - 1, head: -1, tokens: {}, token: 0 };
    root.classList.add("view");
    root.replaceChildren(this.tokenSide(), make("div", { class: "panels" }, this.matrixSide(), this.controlSide()), make("div", {}, ...this.strips()));
    this.matrix = new Matrix(this.parts.matrix);
    this.choose({ map: 0 });
    this.listen();
  }

  get map() {
    return this.maps.maps[this.state.map];
  }

  part(name, tag, attributes = {}, ...children) {
    return (this.parts[name] = make(tag, { id: name, ...attributes }, ...children));
  }

  button(text, attributes, click) {
    return make("button", { type: "button", text, ...attributes, on: { click } });
  }

  tokenSide() {
    const legend = make("i"), colours = VIRIDIS.map((rgb) => `rgb(${rgb.join(",")})`);
    legend.style.background = `linear-gradient(to right, ${colours.join(",")})`;
    return make("div", {},
      this.part("query-title", "h2"), this.part("queries", "div", { class: "tokens", role: "group", "aria-labelledby": "query-title" }),
      this.part("key-title", "h2"), this.part("keys", "div", { class: "tokens", role: "group", "aria-labelledby": "key-title" }),
      this.part("caption", "p", { class: "caption", "aria-live": "polite" }),
      make("p", { class: "legend" }, "0", legend, this.part("peak", "span"), this.part("hidden-note", "span")));
  }

  matrixSide() {
    return make("div", {},
      make("h2", { text: "Attention matrix" }),
      this.part("matrix-note", "p", { class: "quiet" }),
      make("div", {}, this.part("matrix", "canvas", { class: "matrix", role: "img", "aria-label": "The attention matrix", "aria-describedby": "matrix-note" })),
      this.part("pointed", "p", { class: "quiet", text: "\u00a0" }));
  }

  controlSide() {
    const { maps } = this.maps, kinds = maps.map(({ title }, map) => this.button(title, { "data-map": map }, () => this.choose({ map })));
    const views = [["attention", "Blocks and heads", false], ["rollout", "Rollout", true]].map(([view, title, rollout]) => this.button(title, { "data-view": view }, () => this.update({ rollout })));
    return make("div", {},
      maps.length > 1 ? make("div", { class: "row", role: "group", "aria-label": "Attention" }, ...kinds) : null,
      this.part("views", "div", { class: "row", role: "group", "aria-label": "View" }, ...views),
      this.slider("layer", "Block"), this.slider("head", "Head"),
      make("p", { class: "quiet view-keys" }, "Keys, with a token focused: arrows token, ", make("kbd", { text: "," }), " ", make("kbd", { text: "." }), " block, ", make("kbd", { text: "h" }), " head, ", make("kbd", { text: "r" }), " rollout"),
      this.part("predictions", "div", { "aria-live": "polite" }));
  }

  slider(name, title) {
    const input = this.part(name, "input", { type: "range", min: 0, step: 1, on: { input: (event) => this.update({ [name]: Number(event.target.value) - 1 }) } });
    return make("label", { class: "slider" }, title, input, this.part(`${name}-value`, "output"));
  }

  strips() {
    return [
      make("h2", { text: "By block" }), this.part("layers", "div", { class: "strip" }),
      this.part("heads-title", "h2"), this.part("heads", "div", { class: "strip" }),
      make("p", { class: "quiet", text: "Each row of a matrix has its own scale: yellow is its maximum, or three times uniform attention if that is more." }),
    ];
  }

  // Another kind of attention: its tokens, blocks and heads.
  choose({ map }) {
    const { state, parts } = this;
    state.map = map;
    const { map: current } = this, same = current.rows === current.columns, { kind } = this.maps.data;
    state.token = state.tokens[current.rows] ?? this.firstToken(current);
    state.layer = Math.min(state.layer, current.layers - 1);
    state.head = current.heads === 1 ? -1 : Math.min(state.head, current.heads - 1);
    state.rollout &&= Boolean(current.rollout);
    const names = { text: "Tokens", source: "Source tokens", target: "Target tokens, as the decoder reads them", written: "Target tokens, as the decoder writes them" };
    parts["query-title"].textContent = `${names[current.rows]}${same ? "" : ": choose one"}`;
    parts["key-title"].textContent = names[current.columns];
    parts["key-title"].hidden = parts.keys.hidden = same;
    const token = ([id, text], index) => make("button", { type: "button", text, title: `token ${index + 1}, id ${id}`, "data-token": index });
    parts.queries.replaceChildren(...this.maps.sequences[current.rows].map(token));
    parts.keys.replaceChildren(...(same ? [] : this.maps.sequences[current.columns].map(([id, text], index) => make("span", { text, title: `token ${index + 1}, id ${id}` }))));
    parts.views.hidden = !current.rollout;
    parts.layer.max = current.layers;
    parts.head.max = current.heads === 1 ? 0 : current.heads;
    parts.head.parentElement.hidden = current.heads === 1;
    parts["hidden-note"].textContent = current.causal ? "dashed: later tokens, which it cannot see" : "";
    const what = { self: "Each row is a token, each column a token that it attends to.", cross: "Each row is a target token as it is written, each column a source token." };
    parts["matrix-note"].textContent = `${what[current.name] ?? what.self} Click a row to choose it.`;
    this.fillStrip("layers", current.layers, "block");
    this.fillStrip("heads", current.heads === 1 ? 0 : current.heads, "head");
    parts["heads-title"].hidden = current.heads === 1;
    this.masks = kind === "masked_language";
    this.draw();
  }

  fillStrip(name, num, kind) {
    const change = { block: (index) => ({ layer: index === this.state.layer ? -1 : index }), head: (index) => ({ head: index === this.state.head ? -1 : index }) }[kind];
    this.parts[name].style.setProperty("--num", Math.max(1, num));
    this.parts[name].replaceChildren(...[...Array(num).keys()].map((index) => make("button", { type: "button", "aria-label": `${kind} ${index + 1}`, on: { click: () => this.update(change(index)) } }, make("canvas"), String(index + 1))));
  }

  // The token to begin with: the last of a causal model, the first [MASK], else the first.
  firstToken(map) {
    const { kind, predictions } = this.maps.data;
    if (kind === "language") return this.maps.sequences[map.rows].length - 1;
    return kind === "masked_language" && predictions.length ? predictions[0].place : 0;
  }

  update(change) {
    Object.assign(this.state, change);
    if ("layer" in change || "head" in change) this.state.rollout = false;
    this.draw();
  }

  draw() {
    const { state, parts, map, maps } = this;
    for (const [key, value] of [["map", state.map], ["view", state.rollout ? "rollout" : "attention"]])
      for (const button of this.root.querySelectorAll(`[data-${key}]`)) button.setAttribute("aria-pressed", button.dataset[key] === String(value));
    parts.layer.value = state.layer + 1;
    parts["layer-value"].textContent = state.layer < 0 ? "all" : state.layer + 1;
    parts.head.value = state.head + 1;
    parts["head-value"].textContent = state.head < 0 ? "all" : state.head + 1;
    const size = [maps.rows(map).length, maps.columns(map).length];
    const strip = (row, stateOf, selected) => [...row.children].forEach((button, index) => {
      paintMatrix(button.firstChild, size, maps.matrix(map, stateOf(index)), map.causal);
      button.setAttribute("aria-pressed", !state.rollout && index === selected);
    });
    strip(parts.layers, (layer) => ({ layer, head: state.head }), state.layer);
    strip(parts.heads, (head) => ({ layer: state.layer, head }), state.head);
    parts["heads-title"].textContent = `By head, ${state.layer < 0 ? "mean over blocks" : `in block ${state.layer + 1}`}`;
    this.drawToken();
  }

  // All that depends on the chosen token.
  drawToken() {
    const { state, parts, map, maps } = this, row = maps.row(map, state), scale = scaleOf(row, map.causal ? state.token + 1 : row.length), same = map.rows === map.columns;
    const paintTokens = (elements) => elements.forEach((element, index) => {
      const hidden = map.causal && index > state.token, rgb = viridis(row[index] / scale);
      element.classList.toggle("hidden", hidden);
      element.style.background = hidden ? "" : `rgb(${rgb.map(Math.round).join(",")})`;
      element.style.color = hidden ? "" : 0.3 * rgb[0] + 0.6 * rgb[1] + 0.1 * rgb[2] > 125 ? "#000" : "#fff";
    });
    const queries = [...parts.queries.children];
    queries.forEach((element, index) => {
      element.classList.toggle("chosen", index === state.token);
      element.setAttribute("aria-pressed", index === state.token);
      element.tabIndex = index === state.token ? 0 : -1;
    });
    paintTokens(same ? queries : [...parts.keys.children]);
    parts.peak.textContent = percent(scale);
    parts.caption.textContent = maps.caption(map, state);
    this.matrix.draw({ values: maps.matrix(map, state), rows: maps.rows(map), columns: maps.columns(map), causal: map.causal, chosen: state.token });
    parts.predictions.replaceChildren(...this.predictions());
  }

  // The next token after the chosen one, or what each [MASK] hides; encoders predict nothing.
  predictions() {
    const { state, map, maps } = this, { predictions } = maps.data;
    if (map.name === "encoder") return [];
    if (this.masks && !predictions.length) return [make("p", { class: "quiet", text: "Write [MASK] in the text to see what the model expects there." })];
    const found = this.masks ? predictions : predictions.filter(({ place }) => place === state.token);
    return found.map(({ place, tokens, actual }) => {
      const words = maps.rows(map), title = this.masks ? `[MASK], token ${place + 1}` : map.name === "cross" ? `Predictions for target token ${place + 1}` : `Next token after ${quote(words[place])}`;
      const rows = tokens.map(([id, text, probability]) => make("li", { title: `id ${id}` }, make("span", { text }), make("span", { text: percent(probability) }), bar(probability)));
      const after = actual && make("p", { class: "quiet", text: `${map.name === "self" ? "In the text" : "Written"}: ${quote(actual[1])}, ${percent(actual[2])}` });
      return make("div", { class: `prediction${this.masks && place === state.token ? " chosen" : ""}` }, make("h3", { text: title }), make("ol", {}, ...rows), after);
    });
  }

  // Point at a token to see its attention, click or focus it to keep it.
  listen() {
    const { parts, state } = this, at = (event) => event.target.closest("[data-token]"), { queries, matrix } = parts;
    queries.addEventListener("pointerover", (event) => at(event) && event.pointerType === "mouse" && this.hover(Number(at(event).dataset.token)));
    queries.addEventListener("pointerleave", () => this.hover(null));
    queries.addEventListener("click", (event) => at(event) && this.keep(Number(at(event).dataset.token)));
    queries.addEventListener("focusin", (event) => at(event)?.matches(":focus-visible") && this.keep(Number(at(event).dataset.token)));
    queries.addEventListener("keydown", (event) => {
      if (!event.ctrlKey && !event.altKey && !event.metaKey && this.press(event.key)) event.preventDefault();
    });
    matrix.addEventListener("pointermove", (event) => {
      const cell = this.matrix.cellAt(event), { map } = this;
      const value = cell && this.maps.matrix(map, state)[cell[0] * this.maps.columns(map).length + cell[1]];
      parts.pointed.textContent = cell ? `${quote(this.maps.rows(map)[cell[0]])} \u2192 ${quote(this.maps.columns(map)[cell[1]])}: ${map.causal && cell[1] > cell[0] ? "hidden" : percent(value)}` : "\u00a0";
    });
    matrix.addEventListener("click", (event) => this.matrix.cellAt(event) && this.keep(this.matrix.cellAt(event)[0]));
    new ResizeObserver(() => this.drawToken()).observe(matrix.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.drawToken());
  }

  hover(token) {
    if (token === null && this.beforeHover === null) return;
    this.beforeHover ??= this.state.token;
    this.state.token = token ?? this.beforeHover;
    if (token === null) this.beforeHover = null;
    this.drawToken();
  }

  keep(token) {
    const { state, map } = this;
    this.beforeHover = null;
    state.token = token;
    state.tokens[map.rows] = token;
    if (map.rows === "target" || map.rows === "written") state.tokens.target = state.tokens.written = token; // the same step
    this.drawToken();
  }

  // Handle a key; returns whether it is a shortcut.
  press(key) {
    const { state, map, parts } = this, last = parts.queries.children.length - 1;
    const step = (value, by, num) => ((value + 1 + by + num + 1) % (num + 1)) - 1; // from -1, all, to num - 1
    const moves = { ArrowLeft: state.token - 1, ArrowRight: state.token + 1, Home: 0, End: last };
    if (key in moves) {
      this.keep(Math.max(0, Math.min(last, moves[key])));
      parts.queries.children[state.token].focus();
    } else if (key === "," || key === ".") this.update({ layer: step(state.layer, key === "." ? 1 : -1, map.layers) });
    else if ((key === "h" || key === "H") && map.heads > 1) this.update({ head: step(state.head, key === "h" ? 1 : -1, map.heads) });
    else if (key === "r" && map.rollout) this.update({ rollout: !state.rollout });
    else return false;
    return true;
  }
}

async function start() {
  new TextView(document.getElementById("view"), await TextMaps.unpack(JSON.parse(document.getElementById("data").textContent)));
  document.documentElement.dataset.ready = "yes";
}

start().catch((error) => {
  document.getElementById("view").textContent = `This page cannot be shown: ${error.message}`;
  throw error;
});
