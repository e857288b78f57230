/** The tree of trained networks: each is a link to its trial, colored by its quality. */

import { color, rankOf } from "./color.js";
import { h, s } from "./dom.js";
import { metricLabel, percent, quality, whole } from "./format.js";

const MOST = 400; // Networks that are drawn: the latest, and the selected one.
const STEP = 152; // Pixels from a network to its children.
const ROW = 26;
const EDGE = 16;

/** Return the drawing of the tree. */
export function tree({ nodes: known, total, metric, goal }, { run, trial }) {
  const nodes = known.filter(({ id }, place) => place >= known.length - MOST || id === trial);
  if (!nodes.length) return null;
  const placed = places(nodes);
  const rank = rankOf(nodes.map((node) => node.quality), goal);
  const fill = ({ quality: value }) => (value === null ? "var(--surface)" : color(rank(value)));
  const width = 2 * EDGE + STEP * (1 + Math.max(...placed.values().map(({ depth }) => depth)));
  const height = 2 * EDGE + ROW * (nodes.length ? Math.max(...placed.values().map(({ row }) => row)) : 0);
  const reachable = placed.has(trial) ? trial : nodes[0].id;
  return [
    h("p", { class: "lead" }, total > nodes.length ? `The latest trials and their ancestors: ${whole(nodes.length)} of ${whole(total)}. ` : `${whole(total)} trials. `,
      `Color shows ${metricLabel(metric)} (lighter is better). Select a trial to see its layers, operations and curve; arrow keys move between trials.`),
    h("div", { class: "scroll tree-scroll", role: "region", "aria-label": "Drawing: tree of networks", tabindex: 0 },
      s("svg", { class: "networks", width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Tree of networks" },
        nodes.map((node) => edge(node, placed)),
        nodes.map((node) => dot(node, placed.get(node.id), fill(node), { run, metric, reachable, trial })))),
  ];
}

/** Return each network's row and depth: children are to the right of their parent, the first in its row. */
function places(nodes) {
  const known = new Set(nodes.map(({ id }) => id));
  const children = new Map();
  for (const { id, parent } of nodes) {
    const key = known.has(parent) && parent !== id ? parent : null;
    if (!children.has(key)) children.set(key, []);
    children.get(key).push(id);
  }
  const placed = new Map();
  const waiting = (children.get(null) ?? []).map((id) => ({ id, depth: 0, first: false })).reverse();
  let row = -1;
  while (waiting.length) {
    const { id, depth, first } = waiting.pop();
    if (!first) row += 1;
    placed.set(id, { row, depth });
    const own = children.get(id) ?? [];
    for (let place = own.length - 1; place >= 0; place -= 1) waiting.push({ id: own[place], depth: depth + 1, first: place === 0 });
  }
  for (const { id } of nodes) if (!placed.has(id)) placed.set(id, { row: (row += 1), depth: 0 });
  return placed;
}

function at({ row, depth }) {
  return [EDGE + STEP * depth, EDGE + ROW * row];
}

function edge(node, placed) {
  const from = placed.get(node.parent);
  if (!from || node.parent === node.id) return s("path", {});
  const [x, y] = at(placed.get(node.id));
  const [px, py] = at(from);
  const bend = x - 22;
  return s("path", { class: "edge", d: py === y ? `M${px} ${py}H${x}` : `M${px} ${py}H${bend - 8}Q${bend} ${py} ${bend} ${py + 8}V${y - 8}Q${bend} ${y} ${bend + 8} ${y}H${x}` });
}

function dot(node, place, fill, { run, metric, reachable, trial }) {
  const [x, y] = at(place);
  const reached = node.quality === null ? node.state : metric === "accuracy" ? percent(node.quality, 1) : quality(node.quality, metric);
  const grown = node.parent === null ? "the initial network" : `grown from ${node.parent} by ${node.morphism_kinds.join(", ") || "nothing"}`;
  const label = `${short(node.id)} ${reached}: ${node.id}, ${node.state}, ${grown}`;
  return s("a", {
    href: `#/runs/${encodeURIComponent(run)}/trials/${encodeURIComponent(node.id)}`, "aria-label": label, "data-trial": node.id,
    "data-row": place.row, "data-parent": node.parent ?? "", tabindex: node.id === reachable ? 0 : -1,
    class: `${node.state.replaceAll(" ", "-")} node`, "aria-current": node.id === trial ? "true" : null,
  },
  s("title", {}, label),
  s("rect", { class: "around", x: x - 11, y: y - 12, width: STEP - 34, height: 24, rx: 6 }),
  s("circle", { cx: x, cy: y, r: 7, fill }),
  s("text", { x: x + 12, y: y + 4 }, short(node.id), " ", s("tspan", {}, reached)));
}

function short(id) {
  return id.length > 11 ? `${id.slice(0, 10)}…` : id;
}

/** Move the focus by arrow keys: to parent and child, and up and down. */
export function walk(event) {
  const here = event.target.closest?.("a[data-trial]");
  if (!here) return;
  const all = [...here.ownerSVGElement.querySelectorAll("a[data-trial]")];
  const rows = [...all].sort((a, b) => a.dataset.row - b.dataset.row || all.indexOf(a) - all.indexOf(b));
  const next = {
    ArrowLeft: () => all.find((each) => each.dataset.trial === here.dataset.parent),
    ArrowRight: () => all.find((each) => each.dataset.parent === here.dataset.trial),
    ArrowUp: () => rows[rows.indexOf(here) - 1],
    ArrowDown: () => rows[rows.indexOf(here) + 1],
    Home: () => all[0],
    End: () => all.at(-1),
  }[event.key]?.();
  if (!next) return;
  event.preventDefault();
  here.setAttribute("tabindex", -1);
  next.setAttribute("tabindex", 0);
  next.focus();
}
