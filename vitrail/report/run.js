"use strict";
// Tables sort by the selected column heading.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  table.querySelectorAll("thead button").forEach((button, column) => {
    button.addEventListener("click", () => {
      const heading = button.parentElement;
      const descending = column === 0 ? heading.getAttribute("aria-sort") === "ascending" : heading.getAttribute("aria-sort") !== "descending";
      table.querySelectorAll("th").forEach((each) => each.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const rows = [...body.rows].sort((a, b) => {
        const order = column === 0 ? value(a).localeCompare(value(b)) : value(a) - value(b);
        return descending ? -order : order;
      });
      body.append(...rows);
    });
  });
}

const matrix = document.getElementById("matrix");
if (matrix) {
  const images = JSON.parse(document.getElementById("images").textContent);
  const cell = document.getElementById("cell");
  let pressed = null;

  matrix.addEventListener("click", (event) => {
    const button = event.target.closest("td button");
    if (!button) return;
    pressed?.setAttribute("aria-pressed", "false");
    pressed = button;
    button.setAttribute("aria-pressed", "true");
    show(button.dataset.label, button.dataset.predicted, Number(button.textContent));
  });

  function show(label, predicted, count) {
    const found = images.filter((image) => image[0] === label && image[1] === predicted);
    const title = document.createElement("p");
    const outcome = label === predicted ? `${label}, classified correctly` : `${label}, predicted as ${predicted}`;
    title.textContent = `${outcome}: ${count}` + (found.length < count ? ` (${found.length} shown)` : "");
    const list = document.createElement("ul");
    list.className = "gallery small";
    for (const [, , path, confidence, url] of found) {
      const item = document.createElement("li");
      if (url) {
        const image = document.createElement("img");
        image.src = url;
        image.alt = `An image of ${label}`;
        item.append(image);
      }
      item.append(`${(confidence * 100).toFixed(1)}\u00a0% confident`, document.createElement("br"), path);
      list.append(item);
    }
    cell.replaceChildren(title, list);
    cell.scrollIntoView({ block: "nearest" });
  }

  document.getElementById("order").addEventListener("change", (event) => {
    const body = matrix.tBodies[0];
    const rows = [...body.rows].sort((a, b) =>
      event.target.value === "recall" ? a.dataset.recall - b.dataset.recall || a.dataset.class - b.dataset.class : a.dataset.class - b.dataset.class);
    const order = rows.map((row) => row.dataset.class);
    const position = (node) => (node.dataset.class === undefined ? -1 : order.indexOf(node.dataset.class));
    for (const row of [...rows, matrix.tHead.rows[0]]) row.append(...[...row.cells].sort((a, b) => position(a) - position(b)));
    body.append(...rows);
  });
}
