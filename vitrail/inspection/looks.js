"use strict";
// What a model looks at, unpacked from what page.py packed: a number for each cell of the grid, and a sentence.

class Looks {
  static async unpacked(data) {
    const { attention, positions } = data, maps = {};
    for (const [method, map] of Object.entries(data.maps)) maps[method] = await unpack(map.levels);
    const looks = new Looks();
    Object.assign(looks, { data, attention, maps, grid: data.grid });
    looks.levels = attention && (await unpack(attention.levels));
    looks.peaks = attention && (await unpack(attention.peaks, Uint16Array));
    looks.prefixes = attention && (await unpack(attention.prefixes, Uint16Array));
    looks.colours = data.colours && (await unpack(data.colours));
    looks.positions = positions && (await unpack(positions.levels));
    looks.prefix = attention ? attention.prefix.length : 0;
    looks.pooled = attention ? attention.pooled : 1;
    const [rows, columns] = data.grid;
    looks.middle = looks.prefix + Math.floor(rows / 2) * columns + Math.floor(columns / 2);
    return looks;
  }

  // The views there are, by name, with what their buttons say.
  get titles() {
    const own = Object.keys(this.maps).map((method) => [method, this.data.maps[method].title ?? capital(method)]);
    const inner = [["attention", "Attention", this.attention], ["colours", "Token colours", this.colours], ["positions", "Positions", this.positions]];
    return new Map([...own, ...inner.filter(([, , there]) => there).map(([name, title]) => [name, title])]);
  }

  heads(head) {
    return head < 0 ? [...Array(this.attention.heads).keys()] : [head];
  }

  row(layer, head, token) {
    return (layer * this.attention.heads + head) * this.attention.rows + token;
  }

  // What a token looks at in the picture, cell by cell, the largest being 1; of one head, or of all on average.
  attended(layer, head, token) {
    const [rows, columns] = this.grid, width = Math.ceil(rows / this.pooled) * Math.ceil(columns / this.pooled);
    const total = new Float32Array(width);
    for (const each of this.heads(head)) {
      const row = this.row(layer, each, token), peak = this.peaks[row] / 65535;
      for (let place = 0; place < width; place++) total[place] += (this.levels[row * width + place] / this.attention.shades) ** 2 * peak;
    }
    const largest = Math.max(1e-12, ...total);
    return this.widened(total, this.pooled).map((value) => value / largest);
  }

  // Numbers of squares of cells as numbers of cells.
  widened(values, side) {
    const [rows, columns] = this.grid, width = Math.ceil(columns / side);
    return new Float32Array(rows * columns).map((_, cell) => values[Math.floor(Math.floor(cell / columns) / side) * width + Math.floor((cell % columns) / side)]);
  }

  // How alike the position of a cell is to all others: 1 is the same, 0 the least alike.
  likeness(cell) {
    const [rows, columns] = this.grid, side = this.data.positions.pooled;
    const width = Math.ceil(rows / side) * Math.ceil(columns / side);
    const row = this.positions.subarray(cell * width, (cell + 1) * width), low = Math.min(...row);
    return this.widened(row, side).map((level) => (level - low) / Math.max(1, 255 - low));
  }

  // What share of a token's attention goes to each prefix token.
  aside(layer, head, token) {
    const heads = this.heads(head);
    return this.attention.prefix.map((_, place) => heads.reduce((sum, each) => sum + this.prefixes[this.row(layer, each, token) * this.prefix + place] / 65535 / heads.length, 0));
  }

  // The cell of the chosen token; positions are those of cells.
  cell(token) {
    return (token < this.prefix ? this.middle : token) - this.prefix;
  }

  // What is drawn of a choice.
  shown({ view, layer, head, token, choice }) {
    const grid = this.grid, all = grid[0] * grid[1];
    if (view === "attention") return { grid, values: this.attended(layer, head, token) };
    if (view === "colours") return { grid, values: this.colours.subarray(layer * all * 3, (layer + 1) * all * 3), coloured: true };
    if (view === "positions") return { grid, values: this.likeness(this.cell(token)) };
    return { grid, values: Float32Array.from(this.maps[view].subarray(choice * all, (choice + 1) * all), (level) => (level / 255) ** 2) };
  }

  name(token) {
    if (token < this.prefix) return this.attention.prefix[token];
    const columns = this.grid[1], cell = token - this.prefix;
    return `the patch in row ${Math.floor(cell / columns) + 1}, column ${(cell % columns) + 1}`;
  }

  // What is said of a choice.
  told({ view, layer, head, token, choice }) {
    const place = `Block ${layer + 1} of ${this.attention ? this.attention.layers : 0}`;
    if (view === "attention") {
      const shares = this.aside(layer, head, token);
      const parts = this.attention.prefix.map((name, index) => `${percent(shares[index])} at ${name}`);
      parts.push(`${percent(Math.max(0, 1 - shares.reduce((sum, value) => sum + value, 0)))} at the picture`);
      return `${place}, ${head < 0 ? "all heads on average" : `head ${head + 1} of ${this.attention.heads}`}. ${capital(this.name(token))} looks ${parts.join(", ")}.`;
    }
    if (view === "colours") return `${place}. Tokens of like colour are alike after it (their three principal components).`;
    if (view === "positions") return `How alike the position of ${this.name(this.prefix + this.cell(token))} is to all others.`;
    const { name, probability } = this.data.classes[choice];
    return `${this.data.maps[view].says} ${name}: ${percent(probability)}.`;
  }
}
