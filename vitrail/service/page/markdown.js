/* global make */
// Renders the subset of Markdown that model cards use. Links and HTML are shown as plain text.

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
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table" },
    make("table", {}, make("thead", {}, row(lines[0], "th")), make("tbody", {}, ...body.map((line) => row(line, "td")))));
}

const isTable = (line) => /^\s*\|/.test(line), isItem = (line) => /^\s*([-*]|\d+\.)\s+/.test(line), isCode = (line) => /^( {4}|\t)/.test(line);

export function renderMarkdown(text) {
  const lines = text.replace(/^---\n[\s\S]*?\n---\n/, "").split(/\r?\n/), elements = []; // without front matter, which is for model hubs
  let at = 0;
  const takeWhile = (matches) => {
    const start = at;
    while (at < lines.length && matches(lines[at])) at += 1;
    return lines.slice(start, at);
  };
  while (at < lines.length) {
    const line = lines[at], heading = /^(#{1,6})\s+(.*)/.exec(line);
    if (!line.trim()) at += 1;
    else if (heading) {
      elements.push(make(`h${Math.min(6, heading[1].length + 2)}`, {}, ...inline(heading[2]))); // below the page's own headings
      at += 1;
    } else if (/^```/.test(line)) {
      at += 1;
      elements.push(make("pre", { text: takeWhile((each) => !/^```/.test(each)).join("\n") }));
      at += 1;
    } else if (isCode(line)) elements.push(make("pre", { text: takeWhile((each) => isCode(each) || !each.trim()).map((each) => each.replace(/^( {4}|\t)/, "")).join("\n").trimEnd() }));
    else if (isTable(line)) elements.push(table(takeWhile(isTable)));
    else if (isItem(line)) elements.push(make("ul", {}, ...takeWhile(isItem).map((each) => make("li", {}, ...inline(each.replace(/^\s*([-*]|\d+\.)\s+/, ""))))));
    else {
      const paragraph = takeWhile((each) => each.trim() && !isTable(each) && !isItem(each) && !/^(#{1,6}\s|```)/.test(each));
      elements.push(make("p", {}, ...inline(paragraph.join(" "))));
    }
  }
  return elements;
}
