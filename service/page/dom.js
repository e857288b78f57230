/** Elements made of text and attributes, never of markup, and updated in place. */

const SVG = "http://www.w3.org/2000/svg";
const USERS = new Set(["open"]); // Attributes that the reader changes; an update leaves them.

/** Return an element; children are nodes, texts, numbers, or lists of these; null is left out. */
export function h(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** Return an SVG element. */
export function s(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...nodes(children));
  return element;
}

function nodes(children) {
  return children.flat(3).filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(String(child))));
}

/**
 * Make the content of a node equal to new children. Existing nodes are reused, those with the
 * attribute `data-key` by their key, so that focus, selection and scrolling stay.
 */
export function show(node, ...children) {
  patchChildren(node, nodes(children));
}

function patchChildren(live, fresh) {
  const wanted = new Set(fresh.map(key));
  const keyed = new Map();
  for (const child of [...live.childNodes]) {
    if (key(child) === undefined) continue;
    if (wanted.has(key(child))) keyed.set(key(child), child);
    else child.remove();
  }
  let next = live.firstChild;
  for (const child of fresh) {
    const same = key(child) === undefined ? (next !== null && key(next) === undefined ? next : undefined) : keyed.get(key(child));
    if (same === next && next !== null) next = next.nextSibling;
    else live.insertBefore(same ?? child, next);
    if (same) patch(same, child);
  }
  while (next !== null) {
    const last = next;
    next = next.nextSibling;
    last.remove();
  }
}

function key(node) {
  return node.dataset?.key;
}

function patch(live, fresh) {
  if (live.nodeType !== fresh.nodeType || live.nodeName !== fresh.nodeName) {
    live.replaceWith(fresh);
  } else if (live.nodeType === Node.TEXT_NODE) {
    if (live.data !== fresh.data) live.data = fresh.data;
  } else {
    patchAttributes(live, fresh);
    patchChildren(live, [...fresh.childNodes]);
  }
}

function patchAttributes(live, fresh) {
  for (const { name } of [...live.attributes]) {
    if (!fresh.hasAttribute(name) && !USERS.has(name)) live.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (live.getAttribute(name) !== value) live.setAttribute(name, value);
  }
}

/**
 * Return a table in a region that scrolls where it is wider than the window.
 *
 * `columns` are [heading, class, sort key]; a row is a list of cells, the first of which is its
 * heading. `order` is {sort, descending}: headings of columns with a sort key are then buttons.
 * `keys` identify the rows. On a phone each row of a table of the kind `stack` is a block, whose
 * cells have their headings.
 */
export function table(label, columns, rows, kind = "", { order = null, keys = null } = {}) {
  const classes = columns.map(([, name]) => name || null);
  const cell = (content, place) =>
    h(place ? "td" : "th", { scope: place ? null : "row", class: classes[place], "data-label": columns[place][0] }, content);
  return h(
    "div", { class: "scroll", role: "region", "aria-label": `Table: ${label}`, tabindex: 0 },
    h("table", { class: kind || null },
      h("caption", { class: "hidden" }, label),
      h("thead", {}, h("tr", {}, columns.map((column) => heading(column, order)))),
      h("tbody", {}, rows.map((row, place) => h("tr", { "data-key": keys?.[place] }, row.map(cell))))),
  );
}

function heading([text, name, sort], order) {
  if (order === null || !sort) return h("th", { scope: "col", class: name || null }, text);
  const direction = order.sort !== sort ? null : order.descending ? "descending" : "ascending";
  const arrow = { ascending: " ▲", descending: " ▼" }[direction] ?? "";
  return h("th", { scope: "col", class: name || null, "aria-sort": direction },
    h("button", { type: "button", class: "sort", "data-sort": sort }, text, h("span", { "aria-hidden": "true" }, arrow)));
}

/** Return the order after a click on a column's heading: a new column starts in descending order. */
export function reordered(order, sort) {
  return { sort, descending: order.sort !== sort || !order.descending };
}

/** Return a state as marked text. */
export function state(text) {
  return h("span", { class: `chip ${text.replaceAll(" ", "-")}` }, text);
}

/** Return a progress bar of a fraction from 0 to 1; null shows an unknown fraction. */
export function bar(fraction, label) {
  const value = fraction === null ? null : Math.min(1, Math.max(0, fraction));
  return h("progress", { max: 1, value, "aria-label": label });
}
