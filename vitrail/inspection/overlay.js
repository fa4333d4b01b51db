"use strict";
// An image with a map over it, and the decoding of maps.

const VIRIDIS = [[68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141], [39, 173, 129], [92, 200, 99], [170, 220, 50], [253, 231, 37]];

function viridis(value) {
  const position = Math.max(0, Math.min(0.9999, value)) * (VIRIDIS.length - 1);
  const low = Math.floor(position), part = position - low;
  return VIRIDIS[low].map((level, channel) => level + part * (VIRIDIS[low + 1][channel] - level));
}

async function unpack(text, Kind = Uint8Array) {
  const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Kind(await new Response(stream).arrayBuffer());
}

// Paint one pixel per cell; `values` are from 0 to 1, or three bytes per cell. With `translucent`, low values are more
// transparent.
function paint(canvas, grid, values, coloured = false, translucent = false) {
  const [rows, columns] = grid;
  canvas.width = columns;
  canvas.height = rows;
  const image = new ImageData(columns, rows);
  for (let cell = 0; cell < rows * columns; cell++) {
    const rgb = coloured ? values.subarray(3 * cell, 3 * cell + 3) : viridis(values[cell]);
    const alpha = translucent && !coloured ? 0.4 + 0.6 * values[cell] : 1;
    image.data.set([rgb[0], rgb[1], rgb[2], 255 * alpha], 4 * cell);
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

class Overlay {
  constructor(canvas, image, size, window) {
    Object.assign(this, { canvas, image, window, small: document.createElement("canvas") });
    const scale = 960 / Math.max(...size);
    canvas.width = Math.max(1, Math.round(size[1] * scale));
    canvas.height = Math.max(1, Math.round(size[0] * scale));
    this.pixelated = scale > 4; // pixels that large should stay sharp
  }

  // The model's input on the canvas: left, top, width, height.
  get frame() {
    const [top, left, bottom, right] = this.window, { width, height } = this.canvas;
    return [left * width, top * height, (right - left) * width, (bottom - top) * height];
  }

  draw({ grid, values, coloured, opacity, marked, cells }) {
    const context = this.canvas.getContext("2d"), [left, top, width, height] = this.frame;
    context.globalAlpha = 1;
    context.imageSmoothingEnabled = !this.pixelated;
    context.drawImage(this.image, 0, 0, this.canvas.width, this.canvas.height);
    if (values) {
      paint(this.small, grid, values, coloured, true);
      context.globalAlpha = opacity;
      context.imageSmoothingEnabled = false;
      context.drawImage(this.small, left, top, width, height);
      context.globalAlpha = 1;
    }
    context.lineWidth = Math.max(1, this.canvas.width / 500);
    context.strokeStyle = "#fff";
    context.strokeRect(left, top, width, height);
    if (marked !== null && marked !== undefined) {
      const [rows, columns] = cells, side = [width / columns, height / rows];
      const corner = [left + (marked % columns) * side[0], top + Math.floor(marked / columns) * side[1]];
      context.lineWidth *= 3;
      context.strokeStyle = "#000";
      context.strokeRect(...corner, ...side);
      context.lineWidth /= 2;
      context.strokeStyle = "#fff";
      context.strokeRect(...corner, ...side);
    }
  }

  // The cell under the pointer, or null outside the model's input.
  cellAt(event, [rows, columns]) {
    const box = this.canvas.getBoundingClientRect(), [left, top, width, height] = this.frame;
    const x = ((event.clientX - box.left) / box.width) * this.canvas.width - left;
    const y = ((event.clientY - box.top) / box.height) * this.canvas.height - top;
    if (x < 0 || y < 0 || x >= width || y >= height) return null;
    return Math.floor((y / height) * rows) * columns + Math.floor((x / width) * columns);
  }
}
