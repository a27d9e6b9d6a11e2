// Creates and updates elements. Text is never parsed as markup, so that texts of agents and callers
// are safe to show.

const SVG = "http://www.w3.org/2000/svg";

/** Creates an element; `on…` are listeners, and attributes that are null or false are omitted. */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Sets the text only if it differs, which saves a layout. */
export function put(element, text) {
  const next = String(text ?? "");
  if (element.textContent !== next) element.textContent = next;
  return element;
}

export function set(element, name, value) {
  if (value === null || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

const rows = new WeakMap();

/**
 * Reconciles the children of a parent with a list and reuses the elements of items that stay.
 * `make` returns `{ el, update(item) }`.
 */
export function keyed(parent, items, key, make) {
  const old = rows.get(parent) ?? new Map();
  const next = new Map();
  let at = parent.firstChild;
  for (const item of items) {
    const name = key(item);
    const row = old.get(name) ?? make(item);
    row.update?.(item);
    next.set(name, row);
    if (row.el === at) at = at.nextSibling;
    else parent.insertBefore(row.el, at);
  }
  for (const [name, row] of old) if (!next.has(name)) row.el.remove();
  rows.set(parent, next);
}

const COPY = "M5.5 5.5v-3h8v8h-3m-8-5h8v8h-8z";
const DONE = "M3 8.5l3.2 3.2L13 4.8";

/** A button that copies a text, if the browser allows it. */
export function copy(text, what) {
  if (!navigator.clipboard) return null;
  const path = svg("path", { d: COPY });
  const icon = svg(
    "svg",
    { viewBox: "0 0 16 16", width: 14, height: 14, "aria-hidden": "true" },
    path,
  );
  const click = async () => {
    await navigator.clipboard.writeText(text).catch(() => {});
    path.setAttribute("d", DONE);
    setTimeout(() => path.setAttribute("d", COPY), 1200);
  };
  const label = `Copy ${what}`;
  return h(
    "button",
    { class: "icon copy", type: "button", "aria-label": label, title: label, onclick: click },
    icon,
  );
}

/** A command with a button that copies it. */
export function command(text) {
  return h("div", { class: "command" }, h("code", null, text), copy(text, "the command"));
}

/** The placeholder of an empty list: the reason, and what can be done. */
export function empty(title, text, ...more) {
  return h(
    "div",
    { class: "empty" },
    h("h2", null, title),
    text ? h("p", null, text) : null,
    ...more,
  );
}
