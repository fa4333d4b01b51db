"use strict";
// The page of one image: its view, and below it the steps from pixels to prediction.

const byId = (id) => document.getElementById(id);

// The model's input, whole and in patches.
function drawInput({ data, explanation, image }) {
  const [rows, columns] = explanation.grid, [top, left, bottom, right] = data.window;
  for (const [id, gap] of [["input", 0], ["patches", 0.18]]) {
    const canvas = byId(id), side = Math.max(3, Math.floor(320 / columns));
    if (!canvas) continue;
    canvas.width = columns * side;
    canvas.height = rows * side;
    const context = canvas.getContext("2d"), width = ((right - left) * image.width) / columns, height = ((bottom - top) * image.height) / rows;
    for (let row = 0; row < rows; row++)
      for (let column = 0; column < columns; column++)
        context.drawImage(image, left * image.width + column * width, top * image.height + row * height, width, height, column * side, row * side, side * (1 - gap), side * (1 - gap));
  }
}

async function start() {
  const view = await View.open(byId("view"), JSON.parse(byId("data").textContent)), { explanation, data } = view;
  drawInput(view);
  if (explanation.colours) paint(byId("tokens"), explanation.grid, explanation.colours.subarray(-3 * explanation.grid[0] * explanation.grid[1]), true);
  if (data.filters) byId("filters").src = data.filters;
  if (explanation.positions) paint(byId("position"), explanation.grid, explanation.positionSimilarity(explanation.centre - explanation.prefix));
  document.documentElement.dataset.ready = "yes";
}

start().catch((error) => {
  byId("view").textContent = `This page cannot be shown: ${error.message}`;
  throw error;
});
