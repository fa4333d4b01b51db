"use strict";
// DOM elements and number formats. Whatever comes from a file or a server becomes text, never markup.

// An element: `text` is its text, `on` its event listeners; a Boolean attribute is present or absent.
function make(tag, { text, on = {}, ...attributes } = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  for (const [event, listener] of Object.entries(on)) element.addEventListener(event, listener);
  if (text !== undefined) element.textContent = text;
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const percent = (fraction) => `${(100 * fraction).toFixed(1)}\u00a0%`;

// A fraction as a bar, hidden from screen readers because its number stands beside it.
function bar(fraction) {
  const inner = make("i");
  inner.style.width = `${(100 * Math.max(0, Math.min(1, fraction))).toFixed(1)}%`;
  return make("span", { class: "bar", "aria-hidden": "true" }, inner);
}
