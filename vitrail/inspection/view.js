"use strict";
// The view of one picture: the overlay, the controls beside it, and the keys. The page of an explanation has one, the
// page of the service one a picture; `id` stands before its elements' ids, so that they differ.

class View {
  static async open(root, data, { id = "", heading = "h2" } = {}) {
    const looks = await Looks.unpacked(data), picture = new Image();
    picture.src = data.picture;
    await picture.decode();
    return new View(root, data, looks, picture, id, heading);
  }

  constructor(root, data, looks, picture, id, heading) {
    Object.assign(this, { root, data, looks, picture, id, attention: data.attention });
    this.titles = looks.titles;
    this.parts = {};
    this.playing = null;
    this.before = null; // what was shown before a patch was pointed at
    this.now = { view: [...this.titles.keys()][0], layer: this.attention ? this.attention.layers - 1 : 0, head: -1, token: looks.prefix ? 0 : looks.middle, pinned: false, choice: 0, strength: 0.75 };
    root.classList.add("view");
    root.replaceChildren(make("div", { class: "view-bench" }, this.stageSide(), this.controlSide()), ...(this.attention ? this.strips(heading) : []));
    this.overlay = new Overlay(this.parts.stage, picture, data.size, data.window);
    this.listen();
    this.draw();
  }

  part(name, tag, attributes = {}, ...children) {
    return (this.parts[name] = make(tag, { id: this.id + name, ...attributes }, ...children));
  }

  stageSide() {
    return make("div", { class: "view-side" },
      this.part("stage", "canvas", { class: "view-stage", tabindex: 0, role: "img", "aria-label": "The picture, with the chosen map over it", "aria-describedby": `${this.id}said` }),
      this.part("said", "p", { class: "view-said", "aria-live": "polite" }));
  }

  controlSide() {
    const side = make("div", {}, this.group("row", "What is shown", [...this.titles].map(([view, title]) => this.button(title, { "data-view": view }, () => this.choose({ view })))));
    if (this.attention) side.append(this.tokens(), this.slider("layer", "Block", 1, this.attention.layers, 1), this.slider("head", "Head", 0, this.attention.heads, 1));
    side.append(this.slider("strength", "Strength", 0, 1, 0.05));
    if (this.attention) side.append(make("div", { class: "row" }, this.part("play", "button", { type: "button", text: "Play the blocks", on: { click: () => this.play(!this.playing) } })));
    side.append(this.group("classes", "Explained classes", this.data.classes.map((each, choice) => this.classButton(each, choice))), this.keyLine());
    return side;
  }

  group(kind, label, children) {
    return make("div", { class: kind, role: "group", "aria-label": label }, ...children);
  }

  button(text, attributes, click) {
    return make("button", { type: "button", text, ...attributes, on: { click } });
  }

  tokens() {
    const { prefix } = this.attention, named = prefix.length > 0;
    const buttons = prefix.map((name, token) => this.button(capital(name.replace("the ", "")), { "data-token": token }, () => this.choose({ token, pinned: true })));
    const hint = `${named ? "or a patch: " : ""}point at it in the picture, click to keep it, once more to let it go`;
    return this.group("row", "Whose attention", [make("span", { text: named ? "Attention of" : "Attention of a patch" }), ...buttons, make("span", { class: "quiet", text: hint })]);
  }

  slider(name, title, min, max, step) {
    const change = { layer: (value) => ({ layer: value - 1 }), head: (value) => ({ head: value - 1 }), strength: (strength) => ({ strength }) }[name];
    const input = this.part(name, "input", { type: "range", min, max, step, on: { input: (event) => this.choose(change(Number(event.target.value))) } });
    return make("label", { class: "slider" }, title, input, this.part(`${name}-said`, "output"));
  }

  classButton({ name, probability }, choice) {
    const button = this.button("", { "data-choice": choice }, () => this.choose({ choice }));
    button.append(make("span", { text: name }), make("span", { text: percent(probability) }), bar(probability));
    return button;
  }

  keyLine() {
    const key = (name) => make("kbd", { text: name }), last = Math.min(9, this.data.classes.length);
    const inner = this.attention ? [", ", key(","), " ", key("."), " block, ", key("h"), " head, arrows patch, ", ...(this.looks.prefix ? [key("c"), " class token, "] : []), key("space"), " play, ", key("Esc"), " lets a patch go"] : [];
    return make("p", { class: "quiet view-keys" }, "Keys, once the picture is chosen by Tab or a click: ", key("v"), " what is shown", ...inner, ", ", key("1"), " to ", key(last), " class, ", key("+"), " ", key("-"), " strength");
  }

  // Two rows of small maps, one a button.
  strips(heading) {
    const { pooled } = this.looks, coarse = pooled > 1 ? ` For the size of this page, what is looked at is told by squares of ${pooled} x ${pooled} patches.` : "";
    const small = (kind, index, click) => make("button", { type: "button", "aria-label": `${kind} ${index + 1}`, on: { click } }, make("canvas"), String(index + 1));
    const layers = [...Array(this.attention.layers).keys()].map((layer) => small("block", layer, () => this.choose({ layer })));
    const heads = [...Array(this.attention.heads).keys()].map((head) => small("head", head, () => this.choose({ head: head === this.now.head ? -1 : head })));
    const strip = (name, buttons) => {
      const row = this.part(name, "div", { class: "strip" }, ...buttons);
      row.style.setProperty("--num", buttons.length);
      return row;
    };
    return [
      make(heading, { text: "Block by block" }),
      make("p", { class: "quiet" }, "What ", this.part("whose", "span"), ` looks at in each block. Yellow is most, each map by its own largest.${coarse}`),
      strip("layers", layers),
      make(heading, { text: "Head by head, in this block" }),
      strip("heads", heads),
    ];
  }

  draw() {
    const { now, looks, parts } = this, { view, layer, head, token } = now;
    const marked = view === "positions" || (view === "attention" && token >= looks.prefix) ? looks.cell(token) : null;
    this.overlay.draw({ ...looks.shown(now), strength: now.strength, marked, cells: looks.grid });
    parts.said.textContent = looks.told(now);
    for (const [key, value] of [["view", view], ["choice", now.choice], ["token", token]])
      for (const button of this.root.querySelectorAll(`[data-${key}]`)) button.setAttribute("aria-pressed", button.dataset[key] === String(value));
    parts.strength.value = now.strength;
    if (!this.attention) return;
    parts.layer.value = layer + 1;
    parts["layer-said"].textContent = layer + 1;
    parts.head.value = head + 1;
    parts["head-said"].textContent = head < 0 ? "all" : head + 1;
    const strip = (row, mapOf, chosen) => [...row.children].forEach((button, index) => {
      paint(button.firstChild, looks.grid, mapOf(index));
      button.setAttribute("aria-pressed", index === chosen);
    });
    strip(parts.layers, (each) => looks.attended(each, head, token), layer);
    strip(parts.heads, (each) => looks.attended(layer, each, token), head);
    parts.whose.textContent = looks.name(token);
    parts.play.textContent = this.playing ? "Stop" : "Play the blocks";
  }

  choose(change) {
    const { now, looks } = this;
    Object.assign(now, change);
    this.before = null;
    // Not every view has blocks, heads or a chosen token: who asks for them is shown attention.
    const fits = { layer: ["attention", "colours"], head: ["attention"], token: ["attention", "positions"] };
    for (const [key, kinds] of Object.entries(fits)) if (key in change && !kinds.includes(now.view)) now.view = "attention";
    if ("choice" in change && looks.maps[now.view] === undefined) now.view = looks.maps.relevance ? "relevance" : Object.keys(looks.maps)[0];
    if (this.playing && !fits.layer.includes(now.view)) this.stop();
    this.draw();
  }

  stop() {
    clearInterval(this.playing);
    this.playing = null;
  }

  play(on) {
    this.stop();
    if (on) this.playing = setInterval(() => this.choose({ layer: (this.now.layer + 1) % this.attention.layers }), 700);
    this.draw();
  }

  // Point at a patch to see what it looks at, click to keep it.
  listen() {
    const { stage } = this.parts, { prefix, grid } = this.looks, { now } = this;
    stage.addEventListener("pointermove", (event) => {
      const cell = this.overlay.cellAt(event, grid);
      if (!this.attention || cell === null || now.pinned || now.token === prefix + cell) return;
      const earlier = this.before ?? { view: now.view, token: now.token };
      this.choose({ token: prefix + cell });
      this.before = earlier;
    });
    stage.addEventListener("pointerleave", () => {
      if (this.before) Object.assign(now, this.before);
      this.before = null;
      this.draw();
    });
    stage.addEventListener("click", (event) => {
      const cell = this.overlay.cellAt(event, grid);
      if (!this.attention || cell === null) return;
      now.pinned = !now.pinned || now.token !== prefix + cell;
      this.choose({ token: prefix + cell });
    });
    stage.addEventListener("keydown", (event) => {
      if (!event.ctrlKey && !event.altKey && !event.metaKey && this.press(event.key)) event.preventDefault();
    });
  }

  // Whether a key means something here.
  press(key) {
    const { now, looks, attention } = this, views = [...this.titles.keys()];
    const step = (value, by, num) => (value + by + num) % num;
    if (key === "v") this.choose({ view: views[step(views.indexOf(now.view), 1, views.length)] });
    else if (key === "+" || key === "-") this.choose({ strength: Math.min(1, Math.max(0, now.strength + (key === "+" ? 0.1 : -0.1))) });
    else if (/^[1-9]$/.test(key) && Number(key) <= this.data.classes.length) this.choose({ choice: Number(key) - 1 });
    else if (!attention) return false;
    else if (key === "," || key === ".") this.choose({ layer: step(now.layer, key === "." ? 1 : -1, attention.layers) });
    else if (key === "h" || key === "H") this.choose({ head: step(now.head + 1, key === "h" ? 1 : -1, attention.heads + 1) - 1 });
    else if (key === "c" && looks.prefix) this.choose({ token: 0, pinned: true });
    else if (key === " ") this.play(!this.playing);
    else if (key === "Escape" && now.pinned) this.choose({ token: looks.prefix ? 0 : looks.middle, pinned: false });
    else return this.move({ ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[key]);
    return true;
  }

  move(by) {
    if (!by) return false;
    const [rows, columns] = this.looks.grid, cell = this.looks.cell(this.now.token);
    const row = Math.min(rows - 1, Math.max(0, Math.floor(cell / columns) + by[0])), column = Math.min(columns - 1, Math.max(0, (cell % columns) + by[1]));
    this.choose({ token: this.looks.prefix + row * columns + column, pinned: true });
    return true;
  }
}
