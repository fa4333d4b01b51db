"use strict";
// The attention of one text, unpacked from text_page.py's encoding: matrices of weights, and sentences about them.

class TextMaps {
  static async unpack(data) {
    const maps = new TextMaps();
    Object.assign(maps, { data, sequences: data.sequences, maps: [], cache: new Map() });
    for (const map of data.maps)
      maps.maps.push({ ...map, weights: await unpack(map.weights, Uint16Array), rollout: map.rollout && (await unpack(map.rollout, Uint16Array)) });
    return maps;
  }

  rows(map) {
    return this.sequences[map.rows].map(([, text]) => text);
  }

  columns(map) {
    return this.sequences[map.columns].map(([, text]) => text);
  }

  // The weights of a block and head as one array, row by row; -1 is the mean over all blocks or heads.
  matrix(map, { rollout, layer, head }) {
    const key = `${map.name} ${rollout ? "rollout" : `${layer} ${head}`}`;
    if (!this.cache.has(key)) this.cache.set(key, rollout ? Float32Array.from(map.rollout, (level) => level / 65535) : this.mean(map, layer, head));
    return this.cache.get(key);
  }

  mean(map, layer, head) {
    const size = this.rows(map).length * this.columns(map).length, total = new Float32Array(size);
    const layers = layer < 0 ? [...Array(map.layers).keys()] : [layer], heads = head < 0 ? [...Array(map.heads).keys()] : [head];
    const scale = 1 / (65535 * layers.length * heads.length);
    for (const each of layers)
      for (const other of heads) {
        const start = (each * map.heads + other) * size;
        for (let index = 0; index < size; index++) total[index] += map.weights[start + index] * scale;
      }
    return total;
  }

  // What one token attends to: a weight for each column.
  row(map, state) {
    const width = this.columns(map).length;
    return this.matrix(map, state).subarray(state.token * width, (state.token + 1) * width);
  }

  where(map, { rollout, layer, head }) {
    if (rollout) return `Rollout over ${map.layers === 1 ? "the only block" : `${map.layers} blocks`}`;
    const block = layer < 0 ? "Mean over blocks" : `Block ${layer + 1} of ${map.layers}`;
    return `${block}, ${head < 0 ? "mean over heads" : `head ${head + 1} of ${map.heads}`}`;
  }

  // The sentence below the tokens.
  caption(map, state) {
    const columns = this.columns(map), row = this.row(map, state), token = quote(this.rows(map)[state.token]);
    const best = [...row.keys()].sort((first, second) => row[second] - row[first]).slice(0, 3).filter((index) => row[index] > 0.0005);
    const shares = best.map((index) => `${quote(columns[index])} ${percent(row[index])}`).join(", ");
    const who = map.name === "cross" ? `While writing token ${state.token + 1}, ${token}, the decoder attends to` : state.rollout ? `Token ${state.token + 1}, ${token}, is made of` : `Token ${state.token + 1}, ${token}, attends to`;
    return `${this.where(map, state)}. ${who} ${shares}.`;
  }
}

const quote = (text) => `\u201c${text}\u201d`;
