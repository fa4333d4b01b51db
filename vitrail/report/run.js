"use strict";
// Tables that sort by the title that is chosen.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  table.querySelectorAll("thead button").forEach((button, column) => {
    button.addEventListener("click", () => {
      const title = button.parentElement;
      const down = column === 0 ? title.getAttribute("aria-sort") === "ascending" : title.getAttribute("aria-sort") !== "descending";
      table.querySelectorAll("th").forEach((each) => each.removeAttribute("aria-sort"));
      title.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const rows = [...body.rows].sort((a, b) => {
        const order = column === 0 ? value(a).localeCompare(value(b)) : value(a) - value(b);
        return down ? -order : order;
      });
      body.append(...rows);
    });
  });
}

const matrix = document.getElementById("matrix");
if (matrix) {
  const pictures = JSON.parse(document.getElementById("pictures").textContent);
  const cell = document.getElementById("cell");
  let pressed = null;

  matrix.addEventListener("click", (event) => {
    const button = event.target.closest("td button");
    if (!button) return;
    pressed?.setAttribute("aria-pressed", "false");
    pressed = button;
    button.setAttribute("aria-pressed", "true");
    show(button.dataset.truth, button.dataset.called, Number(button.textContent));
  });

  function show(truth, called, count) {
    const found = pictures.filter(([label, predicted]) => label === truth && predicted === called);
    const title = document.createElement("p");
    const right = truth === called ? `${truth}, told right` : `${truth}, taken for ${called}`;
    title.textContent = `${right}: ${count}` + (found.length < count ? `, of which ${found.length} are shown` : "");
    const list = document.createElement("ul");
    list.className = "album";
    for (const [, , path, sure, address] of found) {
      const item = document.createElement("li");
      if (address) {
        const image = document.createElement("img");
        image.src = address;
        image.alt = `A picture of ${truth}`;
        item.append(image);
      }
      item.append(`${(sure * 100).toFixed(1)} % sure`, document.createElement("br"), path);
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
    const place = (node) => (node.dataset.class === undefined ? -1 : order.indexOf(node.dataset.class));
    for (const row of [...rows, matrix.tHead.rows[0]]) row.append(...[...row.cells].sort((a, b) => place(a) - place(b)));
    body.append(...rows);
  });
}
