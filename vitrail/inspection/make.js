"use strict";
// Elements and words. Whatever comes from a file or a server becomes text, never markup.

// An element: `text` is its text, `on` what it listens to, a Boolean an attribute that is there or not.
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
const percent = (share) => `${(100 * share).toFixed(1)}\u00a0%`;

// A share as a bar. Its number stands beside it in words, so a screen reader need not see it.
function bar(share) {
  const inner = make("i");
  inner.style.width = `${(100 * Math.max(0, Math.min(1, share))).toFixed(1)}%`;
  return make("span", { class: "bar", "aria-hidden": "true" }, inner);
}
