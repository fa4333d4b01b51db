"use strict";
// The view of one image: the overlay, the controls beside it, and the keyboard shortcuts. The explanation page has one
// view, the service's page one per image; `id` prefixes the ids of its elements to keep them unique.

class View {
  static async open(root, data, { id = "", heading = "h2" } = {}) {
    const explanation = await Explanation.unpack(data), image = new Image();
    image.src = data.picture;
    await image.decode();
    return new View(root, data, explanation, image, id, heading);
  }

  constructor(root, data, explanation, image, id, heading) {
    Object.assign(this, { root, data, explanation, image, id, attention: data.attention });
    this.titles = explanation.titles;
    this.parts = {};
    this.playing = null;
    this.beforeHover = null; // the token to restore when the pointer leaves
    this.state = { view: [...this.titles.keys()][0], layer: this.attention ? this.attention.layers - 1 : 0, head: -1, token: explanation.start, pinned: false, classIndex: 0, opacity: 0.75 };
    root.classList.add("view");
    root.replaceChildren(make("div", { class: "view-bench" }, this.stageSide(), this.controlSide()), ...(this.attention ? this.strips(heading) : []));
    this.overlay = new Overlay(this.parts.stage, image, data.size, data.window);
    this.listen();
    this.draw();
  }

  part(name, tag, attributes = {}, ...children) {
    return (this.parts[name] = make(tag, { id: this.id + name, ...attributes }, ...children));
  }

  stageSide() {
    return make("div", { class: "view-side" },
      this.part("stage", "canvas", { class: "view-stage", tabindex: 0, role: "img", "aria-label": "The image with the selected map over it", "aria-describedby": `${this.id}caption` }),
      this.part("caption", "p", { class: "view-caption", "aria-live": "polite" }));
  }

  controlSide() {
    const side = make("div", {}, this.group("row", "View", [...this.titles].map(([view, title]) => this.button(title, { "data-view": view }, () => this.update({ view })))));
    const { latents } = this.explanation;
    if (this.attention) side.append(latents ? this.slider("latent", "Latent", 0, latents, 1) : this.tokens(), this.slider("layer", latents ? "Stage" : "Block", 1, this.attention.layers, 1), this.slider("head", "Head", 0, this.attention.heads, 1));
    side.append(this.slider("opacity", "Opacity", 0, 1, 0.05));
    if (this.attention) side.append(make("div", { class: "row" }, this.part("play", "button", { type: "button", text: this.playText, on: { click: () => this.play(!this.playing) } })));
    side.append(this.group("classes", "Explained classes", this.data.classes.map((each, classIndex) => this.classButton(each, classIndex))), this.shortcuts());
    return side;
  }

  get playText() {
    return this.explanation.latents ? "Play through stages" : "Play through blocks";
  }

  group(kind, label, children) {
    return make("div", { class: kind, role: "group", "aria-label": label }, ...children);
  }

  button(text, attributes, click) {
    return make("button", { type: "button", text, ...attributes, on: { click } });
  }

  tokens() {
    const { prefix } = this.attention, named = prefix.length > 0;
    const buttons = prefix.map((name, token) => this.button(capital(name.replace("the ", "")), { "data-token": token }, () => this.update({ token, pinned: true })));
    const hint = `${named ? "or a patch: " : ""}point at the image; click to pin and show it in the image, click again to unpin`;
    return this.group("row", "Attention from", [make("span", { text: named ? "Attention from" : "Attention from a patch" }), ...buttons, make("span", { class: "quiet", text: hint })]);
  }

  slider(name, title, min, max, step) {
    const change = { layer: (value) => ({ layer: value - 1 }), head: (value) => ({ head: value - 1 }), latent: (token) => ({ token }), opacity: (opacity) => ({ opacity }) }[name];
    const input = this.part(name, "input", { type: "range", min, max, step, on: { input: (event) => this.update(change(Number(event.target.value))) } });
    return make("label", { class: "slider" }, title, input, this.part(`${name}-value`, "output"));
  }

  classButton({ name, probability, score }, classIndex) {
    const button = this.button("", { "data-class": classIndex }, () => this.update({ classIndex }));
    button.append(make("span", { text: name }), make("span", { text: score }), ...(probability === null ? [] : [bar(probability)]));
    return button;
  }

  shortcuts() {
    const key = (name) => make("kbd", { text: name }), last = Math.min(9, this.data.classes.length);
    const { latents } = this.explanation;
    const inner = this.attention ? [", ", key(","), " ", key("."), latents ? " stage, " : " block, ", key("h"), " head, ", latents ? "left and right latent, " : "arrows patch, ", ...(this.explanation.prefix ? [key("c"), " class token, "] : []), key("space"), " play", ...(latents ? [] : [", ", key("Esc"), " unpin"])] : [];
    return make("p", { class: "quiet view-keys" }, "Keys, with the image focused by Tab or a click: ", key("v"), " view", ...inner, ", ", key("1"), " to ", key(last), " class, ", key("+"), " ", key("-"), " opacity");
  }

  // Two rows of thumbnails, each a button.
  strips(heading) {
    const { pooled, latents } = this.explanation, [kind, cells] = latents ? ["stage", this.attention.inputs] : ["block", "patches"], coarse = pooled > 1 ? ` To keep this page small, attention is averaged over squares of ${pooled} x ${pooled} ${cells}.` : "";
    const thumbnail = (kind, index, click) => make("button", { type: "button", "aria-label": `${kind} ${index + 1}`, on: { click } }, make("canvas"), String(index + 1));
    const layers = [...Array(this.attention.layers).keys()].map((layer) => thumbnail(kind, layer, () => this.update({ layer })));
    const heads = [...Array(this.attention.heads).keys()].map((head) => thumbnail("head", head, () => this.update({ head: head === this.state.head ? -1 : head })));
    const strip = (name, buttons) => {
      const row = this.part(name, "div", { class: "strip" }, ...buttons);
      row.style.setProperty("--num", buttons.length);
      return row;
    };
    return [
      make(heading, { text: `Attention by ${kind}` }),
      make("p", { class: "quiet" }, "Attention from ", this.part("query", "span"), ` to the ${cells}. Yellow is the maximum; each map has its own scale.${coarse}`),
      strip("layers", layers),
      make(heading, { text: `Attention by head, in the selected ${kind}` }),
      strip("heads", heads),
    ];
  }

  draw() {
    const { state, explanation, parts } = this, { view, layer, head, token } = state;
    const marked = ["positions", "similarity"].includes(view) || (view === "attention" && !explanation.latents && token >= explanation.prefix) ? explanation.cell(token) : null;
    this.overlay.draw({ ...explanation.map(state), opacity: state.opacity, marked, cells: explanation.grid });
    parts.caption.textContent = explanation.caption(state);
    for (const [key, value] of [["view", view], ["class", state.classIndex], ["token", token]])
      for (const button of this.root.querySelectorAll(`[data-${key}]`)) button.setAttribute("aria-pressed", button.dataset[key] === String(value));
    parts.opacity.value = state.opacity;
    if (!this.attention) return;
    parts.layer.value = layer + 1;
    parts["layer-value"].textContent = layer + 1;
    if (explanation.latents) parts.latent.value = token;
    if (explanation.latents) parts["latent-value"].textContent = token || "all";
    parts.head.value = head + 1;
    parts["head-value"].textContent = head < 0 ? "all" : head + 1;
    const strip = (row, mapOf, selected) => [...row.children].forEach((button, index) => {
      paint(button.firstChild, explanation.grid, mapOf(index));
      button.setAttribute("aria-pressed", index === selected);
    });
    strip(parts.layers, (each) => explanation.attentionMap(each, head, token), layer);
    strip(parts.heads, (each) => explanation.attentionMap(layer, each, token), head);
    parts.query.textContent = explanation.name(token);
    parts.play.textContent = this.playing ? "Stop" : this.playText;
  }

  update(change) {
    const { state, explanation } = this;
    Object.assign(state, change);
    this.beforeHover = null;
    // Not every view depends on the block, head or token: changing one of these may switch to the attention view.
    const supported = { layer: ["attention", "colours", "similarity"], head: ["attention"], token: ["attention", "positions", "similarity"] };
    for (const [key, views] of Object.entries(supported)) if (key in change && !views.includes(state.view)) state.view = "attention";
    if ("classIndex" in change && explanation.maps[state.view] === undefined) state.view = explanation.maps.relevance ? "relevance" : Object.keys(explanation.maps)[0];
    if (this.playing && !supported.layer.includes(state.view)) this.stop();
    this.draw();
  }

  stop() {
    clearInterval(this.playing);
    this.playing = null;
  }

  play(on) {
    this.stop();
    if (on) this.playing = setInterval(() => this.update({ layer: (this.state.layer + 1) % this.attention.layers }), 700);
    this.draw();
  }

  // Hovering over a patch shows its attention, in the rows below if another view is chosen; a click pins it and shows it
  // in the image too.
  listen() {
    const { stage } = this.parts, { prefix, grid } = this.explanation, { state } = this, fromCells = this.attention && !this.explanation.latents;
    stage.addEventListener("pointermove", (event) => {
      const cell = this.overlay.cellAt(event, grid);
      if (!fromCells || cell === null || state.pinned || state.token === prefix + cell) return;
      this.beforeHover ??= { token: state.token };
      state.token = prefix + cell;
      this.draw();
    });
    stage.addEventListener("pointerleave", () => {
      if (this.beforeHover) Object.assign(state, this.beforeHover);
      this.beforeHover = null;
      this.draw();
    });
    stage.addEventListener("click", (event) => {
      const cell = this.overlay.cellAt(event, grid);
      if (!fromCells || cell === null) return;
      state.pinned = !state.pinned || state.token !== prefix + cell;
      this.update({ token: prefix + cell });
    });
    stage.addEventListener("keydown", (event) => {
      if (!event.ctrlKey && !event.altKey && !event.metaKey && this.press(event.key)) event.preventDefault();
    });
  }

  // Handle a key; returns whether it is a shortcut.
  press(key) {
    const { state, explanation, attention } = this, views = [...this.titles.keys()];
    const step = (value, by, num) => (value + by + num) % num;
    if (key === "v") this.update({ view: views[step(views.indexOf(state.view), 1, views.length)] });
    else if (key === "+" || key === "-") this.update({ opacity: Math.min(1, Math.max(0, state.opacity + (key === "+" ? 0.1 : -0.1))) });
    else if (/^[1-9]$/.test(key) && Number(key) <= this.data.classes.length) this.update({ classIndex: Number(key) - 1 });
    else if (!attention) return false;
    else if (key === "," || key === ".") this.update({ layer: step(state.layer, key === "." ? 1 : -1, attention.layers) });
    else if (key === "h" || key === "H") this.update({ head: step(state.head + 1, key === "h" ? 1 : -1, attention.heads + 1) - 1 });
    else if (key === "c" && explanation.prefix) this.update({ token: 0, pinned: true });
    else if (key === " ") this.play(!this.playing);
    else if (key === "Escape" && state.pinned) this.update({ token: explanation.start, pinned: false });
    else return this.move({ ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[key]);
    return true;
  }

  move(by) {
    if (!by) return false;
    const { latents } = this.explanation;
    if (latents) this.update({ token: (this.state.token + by[1] + 1 + latents) % (1 + latents) });
    if (latents) return true;
    const [rows, columns] = this.explanation.grid, cell = this.explanation.cell(this.state.token);
    const row = Math.min(rows - 1, Math.max(0, Math.floor(cell / columns) + by[0])), column = Math.min(columns - 1, Math.max(0, (cell % columns) + by[1]));
    this.update({ token: this.explanation.prefix + row * columns + column, pinned: true });
    return true;
  }
}
