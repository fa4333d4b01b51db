"use strict";
// The attention matrix as a heat map: a row for each token that attends, a column for each token that it attends to.

const MAX_LABEL = 84, LABELLED_CELL = 10, MAX_CELL = 26, MAX_HEIGHT = 640, GAP = 5; // CSS pixels

// The weight that is yellow: the maximum of a row, but at least three times uniform attention, so that a row without
// any preference is not yellow all over.
function scaleOf(cells, numVisible) {
  return Math.max(1e-9, Math.min(1, 3 / numVisible), ...cells);
}

// Paint one pixel per weight, each row with its own scale; what causal attention hides stays empty.
function paintMatrix(canvas, [rows, columns], values, causal) {
  canvas.width = columns;
  canvas.height = rows;
  const image = new ImageData(columns, rows);
  for (let row = 0; row < rows; row++) {
    const visible = causal ? row + 1 : columns, cells = values.subarray(row * columns, row * columns + visible), scale = scaleOf(cells, visible);
    for (let column = 0; column < visible; column++) image.data.set([...viridis(cells[column] / scale), 255], 4 * (row * columns + column));
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

class Matrix {
  constructor(canvas) {
    Object.assign(this, { canvas, context: canvas.getContext("2d"), small: document.createElement("canvas") });
  }

  // The size of a cell, and the room for labels: none where cells are too small for them.
  measure(rows, columns) {
    const room = (this.canvas.parentElement.clientWidth || 320) - 2, widest = (texts) => Math.max(...texts.map((text) => this.width(text)));
    this.context.font = this.font(MAX_CELL);
    const left = Math.min(MAX_LABEL, widest(rows) + 2 * GAP), cell = Math.min(MAX_CELL, (room - left) / columns.length, Math.max(1.3 * LABELLED_CELL, MAX_HEIGHT / rows.length));
    this.context.font = this.font(cell);
    const width = widest(columns), upright = width <= 1.2 * cell;
    this.size = [rows.length, columns.length];
    if (cell < LABELLED_CELL) Object.assign(this, { cell: Math.min(room / columns.length, MAX_HEIGHT / rows.length), left: 0, top: 0 });
    else Object.assign(this, { cell, left, upright, top: upright ? 2 * GAP + 8 : Math.min(MAX_LABEL, width + 2 * GAP) });
    return [this.left + columns.length * this.cell + 2, this.top + rows.length * this.cell + 2]; // and the frame's line
  }

  font(cell, weight = "") {
    return `${weight} ${Math.min(13, cell)}px system-ui, sans-serif`;
  }

  width(text) {
    return this.context.measureText(text).width;
  }

  draw({ values, rows, columns, causal, chosen }) {
    const { canvas, context } = this, [width, height] = this.measure(rows, columns), ratio = window.devicePixelRatio || 1, { cell, left, top } = this;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.aspectRatio = `${width} / ${height}`;
    context.scale(ratio, ratio);
    paintMatrix(this.small, this.size, values, causal);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.small, left, top, columns.length * cell, rows.length * cell);
    context.fillStyle = getComputedStyle(canvas).color;
    if (left) this.label(rows, columns, chosen);
    const frame = [left + 1, top + chosen * cell, (causal ? chosen + 1 : columns.length) * cell - 1, Math.max(2, cell)];
    for (const [colour, line] of [["#000", 3], ["#fff", 1.5]]) {
      Object.assign(context, { strokeStyle: colour, lineWidth: line });
      context.strokeRect(...frame);
    }
  }

  label(rows, columns, chosen) {
    const { cell, left, top, upright, context } = this;
    context.textBaseline = "middle";
    context.textAlign = "right";
    rows.forEach((text, row) => {
      context.font = this.font(cell, row === chosen ? "bold" : "");
      context.fillText(this.fit(text), left - GAP, top + (row + 0.5) * cell);
    });
    context.font = this.font(cell);
    context.textAlign = upright ? "center" : "left";
    columns.forEach((text, column) => {
      context.save();
      context.translate(left + (column + 0.5) * cell, upright ? top - GAP - 4 : top - GAP);
      if (!upright) context.rotate(-Math.PI / 2);
      context.fillText(this.fit(text), 0, 0);
      context.restore();
    });
  }

  fit(text) {
    let letters = [...text], short = text;
    while (letters.length > 1 && this.width(short) > MAX_LABEL - 2 * GAP) {
      letters = letters.slice(0, -1);
      short = `${letters.join("")}\u2026`;
    }
    return short;
  }

  // The row and column under the pointer, or null beside the cells.
  cellAt(event) {
    const box = this.canvas.getBoundingClientRect(), scale = box.width / (this.left + this.size[1] * this.cell + 2);
    const column = Math.floor(((event.clientX - box.left) / scale - this.left) / this.cell), row = Math.floor(((event.clientY - box.top) / scale - this.top) / this.cell);
    return row < 0 || column < 0 || row >= this.size[0] || column >= this.size[1] ? null : [row, column];
  }
}
