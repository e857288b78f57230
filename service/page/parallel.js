/** Hyperparameters and objective of trials as parallel coordinates. */

import { rankOf } from "./color.js";
import { h, s } from "./dom.js";
import { capitalized, figure, metricLabel, quality, si, whole } from "./format.js";

const MARGIN = { side: 56, top: 34, bottom: 26 };
const HEIGHT = 320;
const LOGARITHMIC = 30; // Ratio of the greatest to the least value from which an axis is logarithmic.

let drawn = []; // The axes of the last drawing, for the selection of ranges.

/** Return the drawing of the best trials; null before the first evaluated trials. */
export function parallel({ trials, total, goal }, { status, ranges }, width) {
  const rows = trials.filter(({ best_quality: best }) => best !== null);
  if (rows.length < 2) return null;
  const { metric } = status;
  const axes = [...Object.keys(rows[0].hyperparameters).map((name) => axis(name, rows, (row) => row.hyperparameters[name])),
    axis("parameters", rows, (row) => row.parameters), axis("depth", rows, (row) => row.depth)].filter(({ values }) => values.length > 1);
  if (!axes.length) return null;
  axes.push({ ...axis(metric, rows, (row) => row.best_quality, (value) => quality(value, metric)), name: "quality" });
  drawn = axes;
  const inside = new Set(rows.filter((row) => axes.every(({ name, read }) => within(read(row), ranges[name]))));
  const inner = Math.max(96 * (axes.length - 1), width - 2 * MARGIN.side);
  const across = (place) => MARGIN.side + (inner * place) / Math.max(1, axes.length - 1);
  const rank = rankOf(rows.map((row) => row.best_quality), goal);
  const stroke = (row) => `color-mix(in srgb, var(--curve) ${Math.round(100 * rank(row.best_quality))}%, var(--line))`;
  const full = inner + 2 * MARGIN.side;
  return [
    h("p", { class: "lead" }, `${rows.length < total ? `The ${whole(rows.length)} best of ${whole(total)}` : whole(rows.length)} trials. `,
      `Each line is a trial; its color shows ${metricLabel(metric)} (stronger is better). Select a line to see its trial. `,
      "Drag along an axis to select a range of values, also in the table of trials; Escape clears all ranges."),
    h("div", { class: "scroll", role: "region", "aria-label": "Chart: hyperparameters", tabindex: 0 },
      s("svg", { class: "parallel", width: full, height: HEIGHT, viewBox: `0 0 ${full} ${HEIGHT}`, role: "img", "aria-label": label(axes, rows, metric) },
        [...rows].reverse().sort((a, b) => inside.has(a) - inside.has(b)).map((row) => s("path", { stroke: stroke(row), class: inside.has(row) ? null : "out", "data-trial": row.id,
          d: axes.map(({ up, read }, place) => `${place ? "L" : "M"}${across(place).toFixed(1)} ${up(read(row)).toFixed(1)}`).join("") },
        s("title", {}, `${row.id}: ${axes.map((each) => `${each.title} ${each.text(each.read(row))}`).join(", ")}`))),
        axes.map((each, place) => [
          s("line", { class: "axis", x1: across(place), x2: across(place), y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }),
          s("text", { x: across(place), y: 16, "text-anchor": "middle" }, each.title),
          marks(each).map((value) => s("text", { class: "mark", x: across(place) + 5, y: each.up(value) + 4 }, each.text(value))),
          brush(each, across(place), ranges[each.name])]))),
    h("p", { class: "lead", role: "status" }, Object.keys(ranges).length ? `${whole(inside.size)} of these trials ${inside.size === 1 ? "is" : "are"} in the selected ranges.` : ""),
    fields(axes.filter(({ values }) => values.some(isNumber)), metric),
  ];
}

/** Return the mark of an axis's range, and the area along the axis in which the reader drags. */
function brush({ name, values, up }, x, range) {
  if (!values.some(isNumber)) return null;
  const numbers = values.filter((value) => isNumber(value) && within(value, range)).map(up);
  const [top, bottom] = range && numbers.length ? [Math.min(...numbers) - 4, Math.max(...numbers) + 4] : [0, 0];
  return [s("rect", { class: "brush", x: x - 6, width: 12, y: top, height: bottom - top }),
    s("rect", { class: "drag", x: x - 12, width: 24, y: MARGIN.top - 8, height: HEIGHT - MARGIN.top - MARGIN.bottom + 16, "data-axis": name })];
}

/** Return the fields of all ranges. */
function fields(axes, metric) {
  const input = (name, label) => h("label", {}, `${label} `, h("input", { type: "number", step: "any", name }));
  return h("details", { class: "ranges" },
    h("summary", {}, "Ranges"),
    h("form", { class: "controls" },
      axes.map(({ name, title }) => h("fieldset", { "data-key": name }, h("legend", {}, title, name === "quality" && metric === "accuracy" ? " (0 to 1)" : null), input(name, "from"), input(name, "to"))),
      h("button", { type: "button", "data-key": "clear" }, "Clear")));
}

function isNumber(value) {
  return typeof value === "number";
}

function within(value, range) {
  if (range === undefined) return true;
  const [least, most] = range;
  return isNumber(value) && (least === "" || value >= Number(least)) && (most === "" || value <= Number(most));
}

/**
 * Let the reader select ranges: along an axis, in the fields, and by Escape, which clears them.
 * `changed` gets the limits as text by name; an open limit is empty.
 */
export function selectRanges(part, changed) {
  let drag = null;
  const inputs = (name) => [...part.querySelectorAll(`form input${name ? `[name=${name}]` : ""}`)];
  const area = (name) => part.querySelector(`[data-axis="${CSS.escape(name)}"]`);
  const height = (event) => event.clientY - part.querySelector("svg").getBoundingClientRect().top;
  const between = (event) => [drag.from, height(event)].sort((a, b) => a - b);

  function change() {
    const given = new FormData(part.querySelector("form"));
    changed(Object.fromEntries([...given.keys()].map((name) => [name, given.getAll(name).map((text) => (text === "" ? "" : String(Number(text))))])
      .filter(([, limits]) => limits.some((text) => text !== ""))));
  }

  function set(name, limits) {
    inputs(name).forEach((input, place) => { input.value = limits[place % 2]; });
    change();
  }

  part.addEventListener("submit", (event) => event.preventDefault());
  part.addEventListener("change", change);
  part.addEventListener("click", ({ target }) => target.closest("form button") && set("", ["", ""]));
  part.addEventListener("keydown", ({ key }) => {
    if (key !== "Escape" || !part.querySelector("form")) return;
    drag = null;
    set("", ["", ""]);
  });
  part.addEventListener("pointerdown", (event) => {
    const { axis: name } = event.target.dataset;
    if (name === undefined) return;
    part.setPointerCapture(event.pointerId); // A drawing during the drag may replace the axis.
    drag = { name, from: height(event) };
  });
  part.addEventListener("pointermove", (event) => {
    const mark = drag && area(drag.name)?.previousSibling;
    if (!mark) return;
    const [top, bottom] = between(event);
    mark.setAttribute("y", top);
    mark.setAttribute("height", bottom - top);
  });
  for (const end of ["pointercancel", "lostpointercapture"]) part.addEventListener(end, () => { drag = null; });
  part.addEventListener("pointerup", (event) => {
    if (drag === null) return;
    const { name } = drag;
    const limits = area(name) ? between(event) : null;
    drag = null;
    if (limits === null) return;
    const [top, bottom] = limits;
    const { values, up } = drawn.find((each) => each.name === name);
    const found = values.filter((value) => isNumber(value) && up(value) >= top && up(value) <= bottom);
    set(name, found.length && bottom - top > 3 ? [rounded(Math.min(...found), -1), rounded(Math.max(...found), 1)] : ["", ""]);
  });
}

/** Return a number with at most four digits that is not above (-1) or not below (1) another one. */
function rounded(value, direction) {
  const near = Number(value.toPrecision(4));
  if (direction * (near - value) >= 0) return near;
  return Number((near + direction * 10 ** (Math.floor(Math.log10(Math.abs(value))) - 3)).toPrecision(4));
}

/** Return an axis: numbers on a linear or logarithmic scale, other values and none evenly spaced. */
function axis(name, rows, read, text = null) {
  const values = [...new Set(rows.map((row) => plain(read(row))))];
  const numbers = values.every(isNumber);
  values.sort((a, b) => isNumber(b) - isNumber(a) || (a < b ? -1 : Number(a > b)));
  const logarithmic = numbers && values[0] > 0 && values.at(-1) / values[0] >= LOGARITHMIC;
  const scaled = (value) => (numbers ? (logarithmic ? Math.log(value) : value) : values.indexOf(value));
  const [low, high] = [scaled(values[0]), scaled(values.at(-1))];
  const inner = HEIGHT - MARGIN.top - MARGIN.bottom;
  const large = values.at(-1) < 1.1 * values[0] ? whole : (value) => si(value, ""); // Close values differ in later digits.
  return {
    name, title: capitalized(metricLabel(name)), values, read,
    text: text ?? ((value) => (isNumber(value) ? (Math.abs(value) >= 1e4 ? large(value) : figure(value)) : String(plain(value)))),
    up: (value) => MARGIN.top + inner * (1 - (high > low ? (scaled(plain(value)) - low) / (high - low) : 0.5)),
  };
}

function plain(value) {
  return value === null ? "none" : typeof value === "object" ? JSON.stringify(value) : value;
}

/** Return the values that have a label: both ends, and values between them at least 40 pixels apart. */
function marks({ values, up }) {
  const top = up(values.at(-1));
  let last = Infinity;
  return values.filter((value, place) => {
    const far = place === values.length - 1 || (last - up(value) >= 40 && up(value) - top >= 40);
    if (far) last = up(value);
    return far;
  });
}

function label(axes, rows, metric) {
  const best = rows[0];
  return `Hyperparameters of ${rows.length} trials by ${metricLabel(metric)}; the best, ${best.id}, has ${axes.map((each) => `${each.title} ${each.text(each.read(best))}`).join(", ")}`;
}
