// The page of one picture: what is chosen, what is drawn from it, and the keys.

const byId = (id) => document.getElementById(id);
const capital = (text) => text[0].toUpperCase() + text.slice(1);
const percent = (share) => `${(100 * share).toFixed(1)}\u00a0%`;

async function begin() {
  const data = JSON.parse(byId("data").textContent);
  const attention = data.attention, [rows, columns] = data.grid;
  const maps = {};
  for (const [method, map] of Object.entries(data.maps)) maps[method] = await unpack(map.levels);
  const levels = attention && (await unpack(attention.levels)), peaks = attention && (await unpack(attention.peaks, Uint16Array)), prefixes = attention && (await unpack(attention.prefixes, Uint16Array));
  const colours = data.colours && (await unpack(data.colours));
  const positions = data.positions && (await unpack(data.positions.levels));
  const picture = new Image();
  picture.src = data.picture;
  await picture.decode();

  const prefix = attention ? attention.prefix.length : 0;
  const pooled = attention ? attention.pooled : 1;
  const small = [Math.ceil(rows / pooled), Math.ceil(columns / pooled)];
  const views = [...Object.keys(maps), ...(attention ? ["attention"] : []), ...(colours ? ["colours"] : []), ...(positions ? ["positions"] : [])];
  const middle = prefix + Math.floor(rows / 2) * columns + Math.floor(columns / 2);
  const now = { view: views[0], layer: attention ? attention.layers - 1 : 0, head: -1, token: prefix ? 0 : middle, pinned: false, choice: 0, strength: 0.75 };
  const overlay = new Overlay(byId("stage"), picture, data.size, data.window);
  let playing = null, before = null; // what was shown before a patch was pointed at

  const headsOf = (head) => (head < 0 ? [...Array(attention.heads).keys()] : [head]);
  const rowOf = (layer, head, token) => (layer * attention.heads + head) * attention.rows + token;

  // What a token looks at in the picture, cell by cell, the largest being 1; of one head, or of all on average.
  function looks(layer, head, token) {
    const width = small[0] * small[1], total = new Float32Array(width);
    for (const each of headsOf(head)) {
      const row = rowOf(layer, each, token), peak = peaks[row] / 65535;
      for (let place = 0; place < width; place++) total[place] += (levels[row * width + place] / attention.shades) ** 2 * peak;
    }
    const largest = Math.max(1e-12, ...total);
    return widened(total, pooled).map((value) => value / largest);
  }

  // Numbers of squares of cells as numbers of cells.
  function widened(values, side) {
    const width = Math.ceil(columns / side);
    return new Float32Array(rows * columns).map((_, cell) => values[Math.floor(Math.floor(cell / columns) / side) * width + Math.floor((cell % columns) / side)]);
  }

  // How alike the position of a cell is to all others: 1 is the same, 0 the least alike.
  function likeness(cell) {
    const side = data.positions.pooled, width = Math.ceil(rows / side) * Math.ceil(columns / side);
    const row = positions.subarray(cell * width, (cell + 1) * width), low = Math.min(...row);
    return widened(row, side).map((level) => (level - low) / Math.max(1, 255 - low));
  }

  // What share of a token's attention goes to each prefix token.
  const looksAside = (layer, head, token) =>
    attention.prefix.map((_, place) => headsOf(head).reduce((sum, each, _2, all) => sum + prefixes[rowOf(layer, each, token) * prefix + place] / 65535 / all.length, 0));

  function shownMap() {
    if (now.view === "attention") return { grid: data.grid, values: looks(now.layer, now.head, now.token) };
    if (now.view === "colours") return { grid: data.grid, values: colours.subarray(now.layer * rows * columns * 3, (now.layer + 1) * rows * columns * 3), coloured: true };
    if (now.view === "positions") return { grid: data.grid, values: likeness(chosenCell()) };
    const all = rows * columns, map = maps[now.view].subarray(now.choice * all, (now.choice + 1) * all);
    return { grid: data.grid, values: Float32Array.from(map, (level) => (level / 255) ** 2) };
  }

  const chosenCell = () => (now.token < prefix ? middle : now.token) - prefix; // positions are those of cells
  const tokenName = (token) => (token < prefix ? attention.prefix[token] : `the patch in row ${Math.floor((token - prefix) / columns) + 1}, column ${((token - prefix) % columns) + 1}`);

  function said() {
    const place = `Block ${now.layer + 1} of ${attention ? attention.layers : 0}`;
    if (now.view === "attention") {
      const row = looksAside(now.layer, now.head, now.token);
      const parts = attention.prefix.map((name, index) => `${percent(row[index])} at ${name}`);
      parts.push(`${percent(Math.max(0, 1 - row.reduce((sum, value) => sum + value, 0)))} at the picture`);
      return `${place}, ${now.head < 0 ? "all heads on average" : `head ${now.head + 1} of ${attention.heads}`}. ${capital(tokenName(now.token))} looks ${parts.join(", ")}.`;
    }
    if (now.view === "colours") return `${place}. Tokens of like colour are alike after it (their three principal components).`;
    if (now.view === "positions") return `How alike the position of ${tokenName(prefix + chosenCell())} is to all others.`;
    const choice = data.classes[now.choice];
    return `${data.maps[now.view].says} ${choice.name}: ${percent(choice.probability)}.`;
  }

  function draw() {
    const marked = now.view === "positions" || (now.view === "attention" && now.token >= prefix) ? chosenCell() : null;
    overlay.draw({ ...shownMap(), strength: now.strength, marked, cells: data.grid });
    byId("said").textContent = said();
    for (const button of document.querySelectorAll("[data-view]")) button.setAttribute("aria-pressed", button.dataset.view === now.view);
    for (const button of document.querySelectorAll("[data-choice]")) button.setAttribute("aria-pressed", Number(button.dataset.choice) === now.choice);
    for (const button of document.querySelectorAll("[data-token]")) button.setAttribute("aria-pressed", Number(button.dataset.token) === now.token);
    byId("strength").value = now.strength;
    if (!attention) return;
    byId("layer").value = now.layer + 1;
    byId("layer-said").textContent = now.layer + 1;
    byId("head").value = now.head + 1;
    byId("head-said").textContent = now.head < 0 ? "all" : now.head + 1;
    strip("layers", attention.layers, (layer) => [data.grid, looks(layer, now.head, now.token)], (layer) => layer === now.layer);
    strip("heads", attention.heads, (head) => [data.grid, looks(now.layer, head, now.token)], (head) => head === now.head);
    byId("whose").textContent = tokenName(now.token);
    byId("play").textContent = playing ? "Stop" : "Play the blocks";
  }

  // A row of small maps, one a button.
  function strip(id, num, mapOf, chosen) {
    const row = byId(id);
    while (row.children.length < num) {
      const button = document.createElement("button"), index = row.children.length;
      button.append(document.createElement("canvas"), String(index + 1));
      button.setAttribute("aria-label", `${id === "layers" ? "block" : "head"} ${index + 1}`);
      button.addEventListener("click", () => choose(id === "layers" ? { layer: index } : { head: index === now.head ? -1 : index }));
      row.append(button);
    }
    [...row.children].forEach((button, index) => {
      paint(button.firstChild, ...mapOf(index));
      button.setAttribute("aria-pressed", chosen(index));
    });
  }

  function choose(change) {
    Object.assign(now, change);
    before = null;
    // Not every view has blocks, heads or a chosen token: who asks for them is shown attention.
    const fits = { layer: ["attention", "colours"], head: ["attention"], token: ["attention", "positions"] };
    for (const [key, kinds] of Object.entries(fits)) if (key in change && !kinds.includes(now.view)) now.view = "attention";
    if ("choice" in change && maps[now.view] === undefined) now.view = maps.relevance ? "relevance" : Object.keys(maps)[0];
    if (playing && !fits.layer.includes(now.view)) stop();
    draw();
  }

  function stop() {
    clearInterval(playing);
    playing = null;
  }

  function play(on) {
    stop();
    if (on) playing = setInterval(() => choose({ layer: (now.layer + 1) % attention.layers }), 700);
    draw();
  }

  const stage = byId("stage");
  stage.addEventListener("pointermove", (event) => {
    const cell = overlay.cellAt(event, data.grid);
    if (!attention || cell === null || now.pinned || now.token === prefix + cell) return;
    const earlier = before ?? { view: now.view, token: now.token };
    choose({ token: prefix + cell });
    before = earlier;
  });
  stage.addEventListener("pointerleave", () => {
    if (before) Object.assign(now, before);
    before = null;
    draw();
  });
  stage.addEventListener("click", (event) => {
    const cell = overlay.cellAt(event, data.grid);
    if (!attention || cell === null) return;
    now.pinned = !now.pinned || now.token !== prefix + cell;
    choose({ token: prefix + cell });
  });
  for (const button of document.querySelectorAll("[data-view]")) button.addEventListener("click", () => choose({ view: button.dataset.view }));
  for (const button of document.querySelectorAll("[data-choice]")) button.addEventListener("click", () => choose({ choice: Number(button.dataset.choice) }));
  for (const button of document.querySelectorAll("[data-token]")) button.addEventListener("click", () => choose({ token: Number(button.dataset.token), pinned: true }));
  byId("strength").addEventListener("input", (event) => choose({ strength: Number(event.target.value) }));
  if (attention) {
    byId("layer").addEventListener("input", (event) => choose({ layer: event.target.value - 1 }));
    byId("head").addEventListener("input", (event) => choose({ head: event.target.value - 1 }));
    byId("play").addEventListener("click", () => play(!playing));
  }

  const step = (value, by, num) => (value + by + num) % num;
  function move(down, right) {
    const cell = now.token < prefix ? middle - prefix : now.token - prefix;
    const row = Math.min(rows - 1, Math.max(0, Math.floor(cell / columns) + down)), column = Math.min(columns - 1, Math.max(0, (cell % columns) + right));
    choose({ token: prefix + row * columns + column, pinned: true });
  }
  const keys = {
    ArrowUp: () => move(-1, 0), ArrowDown: () => move(1, 0), ArrowLeft: () => move(0, -1), ArrowRight: () => move(0, 1),
    ",": () => choose({ layer: step(now.layer, -1, attention.layers) }), ".": () => choose({ layer: step(now.layer, 1, attention.layers) }),
    Escape: () => now.pinned && choose({ token: prefix ? 0 : middle, pinned: false }),
    h: () => choose({ head: step(now.head + 1, 1, attention.heads + 1) - 1 }), H: () => choose({ head: step(now.head + 1, -1, attention.heads + 1) - 1 }),
    c: () => prefix && choose({ token: 0, pinned: true }), " ": () => play(!playing),
  };
  stage.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "v") choose({ view: views[step(views.indexOf(now.view), 1, views.length)] });
    else if (event.key === "+" || event.key === "-") choose({ strength: Math.min(1, Math.max(0, now.strength + (event.key === "+" ? 0.1 : -0.1))) });
    else if (/^[1-9]$/.test(event.key) && Number(event.key) <= data.classes.length) choose({ choice: Number(event.key) - 1 });
    else if (attention && keys[event.key]) keys[event.key]();
    else return;
    event.preventDefault();
  });

  // What the model sees, whole and in patches.
  for (const [id, gap] of [["seen", 0], ["patches", 0.18]]) {
    const canvas = byId(id), [top, left, bottom, right] = data.window, side = Math.max(3, Math.floor(320 / columns));
    if (!canvas) continue;
    canvas.width = columns * side;
    canvas.height = rows * side;
    const pen = canvas.getContext("2d"), wide = ((right - left) * picture.width) / columns, high = ((bottom - top) * picture.height) / rows;
    for (let row = 0; row < rows; row++)
      for (let column = 0; column < columns; column++)
        pen.drawImage(picture, left * picture.width + column * wide, top * picture.height + row * high, wide, high, column * side, row * side, side * (1 - gap), side * (1 - gap));
  }
  if (pooled > 1) byId("coarse").textContent = ` For the size of this page, what is looked at is told by squares of ${pooled} x ${pooled} patches.`;
  if (colours) paint(byId("embedded"), data.grid, colours.subarray(0, rows * columns * 3), true);
  if (data.filters) byId("filters").src = data.filters;
  if (positions) paint(byId("position"), data.grid, likeness(middle - prefix));
  draw();
  document.documentElement.dataset.ready = "yes";
}

begin().catch((error) => {
  byId("said").textContent = `This page cannot be shown: ${error.message}`;
  throw error;
});
