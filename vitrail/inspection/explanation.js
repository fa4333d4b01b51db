"use strict";
// The data of one explanation, unpacked from page.py's encoding: a value for each cell of the grid, and a caption.

class Explanation {
  static async unpack(data) {
    const { attention, positions, similarity } = data, maps = {};
    for (const [method, map] of Object.entries(data.maps)) maps[method] = await unpack(map.levels);
    const explanation = new Explanation();
    Object.assign(explanation, { data, attention, maps, grid: data.grid });
    explanation.levels = attention && (await unpack(attention.levels));
    explanation.peaks = attention && (await unpack(attention.peaks, Uint16Array));
    explanation.prefixes = attention && (await unpack(attention.prefixes, Uint16Array));
    explanation.colours = data.colours && (await unpack(data.colours));
    explanation.positions = positions && (await unpack(positions.levels));
    explanation.similarities = similarity && (await unpack(similarity.levels));
    explanation.prefix = attention ? attention.prefix.length : 0;
    explanation.latents = attention?.latents ?? 0; // a Perceiver: row 0 is the mean of all latents, then one row for each
    explanation.pooled = attention ? attention.pooled : 1;
    const [rows, columns] = data.grid;
    explanation.centre = explanation.prefix + Math.floor(rows / 2) * columns + Math.floor(columns / 2);
    return explanation;
  }

  // The token whose attention is shown first.
  get start() {
    return this.prefix || this.latents ? 0 : this.centre;
  }

  // The available views and the titles of their buttons.
  get titles() {
    const methods = Object.keys(this.maps).map((method) => [method, this.data.maps[method].title ?? capital(method)]);
    const inner = [["attention", this.latents ? "Cross-attention" : "Attention", this.attention], ["similarity", "Token similarity", this.similarities], ["colours", "Token colours", this.colours], ["positions", "Position embeddings", this.positions]];
    return new Map([...methods, ...inner.filter(([, , present]) => present).map(([name, title]) => [name, title])]);
  }

  heads(head) {
    return head < 0 ? [...Array(this.attention.heads).keys()] : [head];
  }

  row(layer, head, token) {
    return (layer * this.attention.heads + head) * this.attention.rows + token;
  }

  // The attention of one token to each cell, the maximum scaled to 1; of one head, or the mean over all.
  attentionMap(layer, head, token) {
    const [rows, columns] = this.grid, width = Math.ceil(rows / this.pooled) * Math.ceil(columns / this.pooled);
    const total = new Float32Array(width);
    for (const each of this.heads(head)) {
      const row = this.row(layer, each, token), peak = this.peaks[row] / 65535;
      for (let index = 0; index < width; index++) total[index] += (this.levels[row * width + index] / this.attention.shades) ** 2 * peak;
    }
    const maximum = Math.max(1e-12, ...total);
    return this.upsample(total, this.pooled).map((value) => value / maximum);
  }

  // Values of pooled cells as values of single cells.
  upsample(values, side) {
    const [rows, columns] = this.grid, width = Math.ceil(columns / side);
    return new Float32Array(rows * columns).map((_, cell) => values[Math.floor(Math.floor(cell / columns) / side) * width + Math.floor((cell % columns) / side)]);
  }

  // The similarity of a cell's position embedding to all others, scaled: 1 is identical, 0 the least similar.
  positionSimilarity(cell) {
    const [rows, columns] = this.grid, side = this.data.positions.pooled;
    const width = Math.ceil(rows / side) * Math.ceil(columns / side);
    const row = this.positions.subarray(cell * width, (cell + 1) * width), low = Math.min(...row);
    return this.upsample(row, side).map((level) => (level - low) / Math.max(1, 255 - low));
  }

  // The cosine similarity of a cell's token after a block to all others, from its upper triangle; and the range of the others.
  tokenSimilarity(layer, cell) {
    const [rows, columns] = this.grid, { pooled, shades } = this.data.similarity, width = Math.ceil(columns / pooled);
    const num = Math.ceil(rows / pooled) * width, own = Math.floor(Math.floor(cell / columns) / pooled) * width + Math.floor((cell % columns) / pooled);
    const at = (low, high) => this.similarities[(layer * num * (num + 1) - low * (low - 1)) / 2 + low * num + high - low];
    const cosines = new Float32Array(num).map((_, other) => (2 * at(Math.min(own, other), Math.max(own, other))) / shades - 1);
    const others = cosines.filter((_, other) => other !== own);
    return { values: this.upsample(cosines, pooled), low: Math.min(...others), high: Math.max(...others) };
  }

  similarityMap(layer, cell) {
    const { values, low, high } = this.tokenSimilarity(layer, cell);
    return values.map((value) => Math.min(1, (value - low) / Math.max(1e-6, high - low)));
  }

  // The fraction of a token's attention that goes to each prefix token.
  prefixAttention(layer, head, token) {
    const heads = this.heads(head);
    return this.attention.prefix.map((_, index) => heads.reduce((sum, each) => sum + this.prefixes[this.row(layer, each, token) * this.prefix + index] / 65535 / heads.length, 0));
  }

  // The cell of the selected token; the centre for prefix tokens, which have no position.
  cell(token) {
    return (token < this.prefix ? this.centre : token) - this.prefix;
  }

  // The map to draw for a state of the view.
  map({ view, layer, head, token, classIndex }) {
    const grid = this.grid, numCells = grid[0] * grid[1];
    if (view === "attention") return { grid, values: this.attentionMap(layer, head, token) };
    if (view === "colours") return { grid, values: this.colours.subarray(layer * numCells * 3, (layer + 1) * numCells * 3), coloured: true };
    if (view === "similarity") return { grid, values: this.similarityMap(layer, this.cell(token)) };
    if (view === "positions") return { grid, values: this.positionSimilarity(this.cell(token)) };
    return { grid, values: Float32Array.from(this.maps[view].subarray(classIndex * numCells, (classIndex + 1) * numCells), (level) => (level / 255) ** 2) };
  }

  name(token) {
    if (this.latents) return token ? `latent ${token} of ${this.latents}` : "the mean of all latents";
    if (token < this.prefix) return this.attention.prefix[token];
    const columns = this.grid[1], cell = token - this.prefix;
    return `the patch in row ${Math.floor(cell / columns) + 1}, column ${(cell % columns) + 1}`;
  }

  // The sentence below the image for a state of the view.
  caption({ view, layer, head, token, classIndex }) {
    const block = `${this.latents ? "Stage" : "Block"} ${layer + 1} of ${this.attention ? this.attention.layers : 0}`;
    const ofHead = head < 0 ? "mean over heads" : `head ${head + 1} of ${this.attention?.heads}`;
    if (view === "attention" && this.latents) return `${block}, ${ofHead}. The ${this.attention.inputs} that ${this.name(token)} reads. It is the same for every class.`;
    if (view === "attention") {
      const fractions = this.prefixAttention(layer, head, token);
      const prefix = this.attention.prefix.map((name, index) => `${name} (${percent(fractions[index])})`).join(", ");
      const patches = `the patches (${percent(Math.max(0, 1 - fractions.reduce((sum, value) => sum + value, 0)))})`;
      return `${block}, ${ofHead}. ${capital(this.name(token))} attends to ${prefix ? `${prefix} and ` : ""}${patches}.`;
    }
    if (view === "similarity") {
      const { low, high } = this.tokenSimilarity(layer, this.cell(token)), { pooled } = this.data.similarity;
      const coarse = pooled > 1 ? ` To keep this page small, it is averaged over squares of ${pooled} x ${pooled} patches.` : "";
      return `${block}. How alike its output tokens are to ${this.name(this.prefix + this.cell(token))}: cosine similarity from ${low.toFixed(2)} (dark) to ${high.toFixed(2)} (yellow).${coarse}`;
    }
    if (view === "colours") return `${block}. Its output tokens as colours, by their first three principal components: similar tokens have similar colours.`;
    if (view === "positions") return `Cosine similarity between the position embedding of ${this.name(this.prefix + this.cell(token))} and all others.`;
    const { name, score } = this.data.classes[classIndex];
    return `${this.data.maps[view].says} ${name}: ${score}.`;
  }
}
