"use strict";
// A picture with a map over it, and what is needed to unpack maps.

const VIRIDIS = [[68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141], [39, 173, 129], [92, 200, 99], [170, 220, 50], [253, 231, 37]];

function colour(share) {
  const place = Math.max(0, Math.min(0.9999, share)) * (VIRIDIS.length - 1);
  const low = Math.floor(place), part = place - low;
  return VIRIDIS[low].map((value, channel) => value + part * (VIRIDIS[low + 1][channel] - value));
}

async function unpack(text, Kind = Uint8Array) {
  const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Kind(await new Response(stream).arrayBuffer());
}

// Numbers as a small picture of one pixel a cell; `values` from 0 to 1, or three bytes a cell. With `sheer`, small values
// let more of what lies below be seen.
function paint(canvas, grid, values, coloured = false, sheer = false) {
  const [rows, columns] = grid;
  canvas.width = columns;
  canvas.height = rows;
  const image = new ImageData(columns, rows);
  for (let cell = 0; cell < rows * columns; cell++) {
    const shade = coloured ? values.subarray(3 * cell, 3 * cell + 3) : colour(values[cell]);
    const opacity = sheer && !coloured ? 0.4 + 0.6 * values[cell] : 1;
    image.data.set([shade[0], shade[1], shade[2], 255 * opacity], 4 * cell);
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

class Overlay {
  constructor(canvas, picture, size, window) {
    Object.assign(this, { canvas, picture, window, small: document.createElement("canvas") });
    const scale = 960 / Math.max(...size);
    canvas.width = Math.max(1, Math.round(size[1] * scale));
    canvas.height = Math.max(1, Math.round(size[0] * scale));
    this.coarse = scale > 4; // pixels that can be seen one by one are not to be smeared
  }

  // Where the model's input lies on the canvas: left, top, width, height.
  get frame() {
    const [top, left, bottom, right] = this.window, { width, height } = this.canvas;
    return [left * width, top * height, (right - left) * width, (bottom - top) * height];
  }

  draw({ grid, values, coloured, strength, marked, cells }) {
    const pen = this.canvas.getContext("2d"), [left, top, width, height] = this.frame;
    pen.globalAlpha = 1;
    pen.imageSmoothingEnabled = !this.coarse;
    pen.drawImage(this.picture, 0, 0, this.canvas.width, this.canvas.height);
    if (values) {
      paint(this.small, grid, values, coloured, true);
      pen.globalAlpha = strength;
      pen.imageSmoothingEnabled = false;
      pen.drawImage(this.small, left, top, width, height);
      pen.globalAlpha = 1;
    }
    pen.lineWidth = Math.max(1, this.canvas.width / 500);
    pen.strokeStyle = "#fff";
    pen.strokeRect(left, top, width, height);
    if (marked !== null && marked !== undefined) {
      const [rows, columns] = cells, side = [width / columns, height / rows];
      const corner = [left + (marked % columns) * side[0], top + Math.floor(marked / columns) * side[1]];
      pen.lineWidth *= 3;
      pen.strokeStyle = "#000";
      pen.strokeRect(...corner, ...side);
      pen.lineWidth /= 2;
      pen.strokeStyle = "#fff";
      pen.strokeRect(...corner, ...side);
    }
  }

  // The cell under the pointer, or null outside of what the model sees.
  cellAt(event, [rows, columns]) {
    const box = this.canvas.getBoundingClientRect(), [left, top, width, height] = this.frame;
    const x = ((event.clientX - box.left) / box.width) * this.canvas.width - left;
    const y = ((event.clientY - box.top) / box.height) * this.canvas.height - top;
    if (x < 0 || y < 0 || x >= width || y >= height) return null;
    return Math.floor((y / height) * rows) * columns + Math.floor((x / width) * columns);
  }
}
