/* global make */
// The little of Markdown that model cards use, as elements. Links stay text, and markup stays letters.

function inline(text) {
  return text.split(/(`[^`]+`|\*\*[^*]+\*\*)/).map((part) => {
    if (/^`.+`$/s.test(part)) return make("code", { text: part.slice(1, -1) });
    if (/^\*\*.+\*\*$/s.test(part)) return make("strong", { text: part.slice(2, -2) });
    return part.replace(/\[([^\]]+)\]\(([^)\s]+)\)/g, "$1 ($2)");
  });
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());

function table(lines) {
  const row = (line, tag) => make("tr", {}, ...cells(line).map((cell) => make(tag, tag === "th" ? { scope: "col" } : {}, ...inline(cell))));
  const body = lines.slice(1).filter((line) => !/^[\s|:-]+$/.test(line));
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "A table of the card" },
    make("table", {}, make("thead", {}, row(lines[0], "th")), make("tbody", {}, ...body.map((line) => row(line, "td")))));
}

const isTable = (line) => /^\s*\|/.test(line), isItem = (line) => /^\s*([-*]|\d+\.)\s+/.test(line), isCode = (line) => /^( {4}|\t)/.test(line);

export function rendered(text) {
  const lines = text.replace(/^---\n[\s\S]*?\n---\n/, "").split(/\r?\n/), found = []; // front matter is for hubs
  let at = 0;
  const take = (fits) => {
    const from = at;
    while (at < lines.length && fits(lines[at])) at += 1;
    return lines.slice(from, at);
  };
  while (at < lines.length) {
    const line = lines[at], title = /^(#{1,6})\s+(.*)/.exec(line);
    if (!line.trim()) at += 1;
    else if (title) {
      found.push(make(`h${Math.min(6, title[1].length + 2)}`, {}, ...inline(title[2]))); // below the page's own titles
      at += 1;
    } else if (/^```/.test(line)) {
      at += 1;
      found.push(make("pre", { text: take((each) => !/^```/.test(each)).join("\n") }));
      at += 1;
    } else if (isCode(line)) found.push(make("pre", { text: take((each) => isCode(each) || !each.trim()).map((each) => each.replace(/^( {4}|\t)/, "")).join("\n").trimEnd() }));
    else if (isTable(line)) found.push(table(take(isTable)));
    else if (isItem(line)) found.push(make("ul", {}, ...take(isItem).map((each) => make("li", {}, ...inline(each.replace(/^\s*([-*]|\d+\.)\s+/, ""))))));
    else {
      const words = take((each) => each.trim() && !isTable(each) && !isItem(each) && !/^(#{1,6}\s|```)/.test(each));
      found.push(make("p", {}, ...inline(words.join(" "))));
    }
  }
  return found;
}
