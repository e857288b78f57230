/** Nodes: made of text and attributes alone, never of markup, and changed in place. */

const SVG = "http://www.w3.org/2000/svg";
const MINE = new Set(["open"]); // What people change in the page, and it does not.

/** Return an element; children are nodes, texts, numbers, or lists of these; null is left out. */
export function h(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** The same, of a drawing. */
export function s(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== false).map(asNode));
  return element;
}

function asNode(child) {
  return child instanceof Node ? child : document.createTextNode(String(child));
}

/**
 * Make what is in a node equal to new children. Nodes of the same kind in the same place are kept,
 * so that focus, selection and scrolling are too, and nothing piles up.
 */
export function show(node, ...children) {
  patchChildren(node, children.flat(3).filter((child) => child !== null && child !== false).map(asNode));
}

function patchChildren(live, fresh) {
  const old = [...live.childNodes];
  fresh.forEach((child, place) => {
    if (place >= old.length) live.append(child);
    else patch(old[place], child);
  });
  old.slice(fresh.length).forEach((child) => child.remove());
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
    if (!fresh.hasAttribute(name) && !MINE.has(name)) live.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (live.getAttribute(name) !== value) live.setAttribute(name, value);
  }
}

/**
 * Return a table in a region that scrolls where it is wider than the window.
 *
 * `columns` are [heading, class] pairs; a row is a list of cells, the first of which names it. On a
 * phone each row of a table of the kind `stack` is a block, whose cells have their headings.
 */
export function table(label, columns, rows, kind = "") {
  const classes = columns.map(([, name]) => name || null);
  const cell = (content, place) =>
    h(place ? "td" : "th", { scope: place ? null : "row", class: classes[place], "data-label": columns[place][0] }, content);
  return h(
    "div", { class: "scroll", role: "region", "aria-label": `Table: ${label}`, tabindex: 0 },
    h("table", { class: kind || null },
      h("thead", {}, h("tr", {}, columns.map(([heading, name]) => h("th", { scope: "col", class: name || null }, heading)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell))))),
  );
}

/** Return a bar of a share from 0 to 1, or one that says that it is not known how far it is. */
export function bar(share, label) {
  const value = share === null ? null : Math.min(1, Math.max(0, share));
  return h("progress", { max: 1, value, "aria-label": label });
}
