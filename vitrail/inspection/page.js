"use strict";
// The page of one picture: its view, and the way of the data below it.

const byId = (id) => document.getElementById(id);

// What the model sees, whole and in patches.
function drawSeen({ data, looks, picture }) {
  const [rows, columns] = looks.grid, [top, left, bottom, right] = data.window;
  for (const [id, gap] of [["seen", 0], ["patches", 0.18]]) {
    const canvas = byId(id), side = Math.max(3, Math.floor(320 / columns));
    if (!canvas) continue;
    canvas.width = columns * side;
    canvas.height = rows * side;
    const pen = canvas.getContext("2d"), wide = ((right - left) * picture.width) / columns, high = ((bottom - top) * picture.height) / rows;
    for (let row = 0; row < rows; row++)
      for (let column = 0; column < columns; column++)
        pen.drawImage(picture, left * picture.width + column * wide, top * picture.height + row * high, wide, high, column * side, row * side, side * (1 - gap), side * (1 - gap));
  }
}

async function begin() {
  const view = await View.open(byId("view"), JSON.parse(byId("data").textContent)), { looks, data } = view;
  drawSeen(view);
  if (looks.colours) paint(byId("embedded"), looks.grid, looks.colours.subarray(0, looks.grid[0] * looks.grid[1] * 3), true);
  if (data.filters) byId("filters").src = data.filters;
  if (looks.positions) paint(byId("position"), looks.grid, looks.likeness(looks.middle - looks.prefix));
  document.documentElement.dataset.ready = "yes";
}

begin().catch((error) => {
  byId("view").textContent = `This page cannot be shown: ${error.message}`;
  throw error;
});
