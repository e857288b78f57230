/** Line charts, drawn at the available width, with a cursor that shows the values. */

import { h, s, show } from "./dom.js";

const MARGIN = { left: 76, right: 16, top: 10, bottom: 30 };
const LABEL_PIXELS = 84; // Minimum distance of two labels of the horizontal axis.
const KINDS = 8; // Series with a color and dashes of their own.
const drawn = new Map(); // The charts of the view by their ids, for the cursor.

/** Forget the charts of a view that was left. */
export function forgetCharts() {
  drawn.clear();
}

/**
 * Return a chart.
 *
 * `series` are {label, points: [[x, y], ...]}, whose ys may be null; `x` and `y` are {end,
 * text(value), steps}: `steps` are the permitted distances of ticks. `id` identifies the chart in
 * its view, `stepped` draws a value until the next one. A `y.start` makes the axis logarithmic.
 */
export function chart({ id, label, series, x, y, width, height = 240, stepped = false }) {
  const inner = { width: Math.max(120, width - MARGIN.left - MARGIN.right), height: height - MARGIN.top - MARGIN.bottom };
  const across = (value) => MARGIN.left + (inner.width * value) / x.end;
  const up = (value) => MARGIN.top + inner.height * (1 - (y.start ? Math.log(value / y.start) / Math.log(y.end / y.start) : value / y.end));
  const right = MARGIN.left + inner.width;
  const bottom = MARGIN.top + inner.height;
  const known = series.map((each) => ({ ...each, points: each.points.filter(([, value]) => value !== null) }));
  const state = { known, x, y, width, across, at: drawn.get(id)?.at ?? null };
  drawn.set(id, state);
  return h("div", { class: "plotted" },
    s("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label, tabindex: 0, "data-chart": id },
      (y.start ? decades(y.start, y.end) : ticks(y.end, 4, y.steps)).map((value) => [
        s("line", { class: "grid", x1: MARGIN.left, x2: right, y1: up(value), y2: up(value) }),
        s("text", { x: MARGIN.left - 8, y: up(value) + 4, "text-anchor": "end" }, y.text(value))]),
      ticks(x.end, Math.max(2, Math.floor(inner.width / LABEL_PIXELS)), x.steps).map((value) =>
        s("text", { x: across(value), y: bottom + 20, "text-anchor": right - across(value) < LABEL_PIXELS / 3 ? "end" : "middle" }, x.text(value))),
      s("line", { class: "axis", x1: MARGIN.left, x2: right, y1: bottom, y2: bottom }),
      known.map(({ points }, place) => line(points, `s${place % KINDS}`, across, up, stepped)),
      s("line", { class: "cursor", y1: MARGIN.top, y2: bottom, ...cursorAt(state) })),
    h("ul", { class: "legend" }, series.map(({ label: name }, place) =>
      h("li", {}, s("svg", { class: "key line", viewBox: "0 0 24 12", "aria-hidden": "true" },
        s("line", { class: `s${place % KINDS}`, x1: 0, x2: 24, y1: 6, y2: 6 })), name))),
    h("p", { class: "readout", role: "status" }, values(state)));
}

function line(points, kind, across, up, stepped) {
  if (!points.length) return null;
  const [x, y] = points.at(-1);
  const path = points.map(([px, py], place) =>
    (place === 0 ? "M" : stepped ? `H${across(px).toFixed(1)}L` : "L") + `${across(px).toFixed(1)} ${up(py).toFixed(1)}`);
  return [s("path", { class: kind, d: path.join("") }), s("circle", { class: kind, cx: across(x), cy: up(y), r: 4 })];
}

function cursorAt({ at, across }) {
  return at === null ? { visibility: "hidden", x1: 0, x2: 0 } : { visibility: null, x1: across(at), x2: across(at) };
}

/** Return the values at the cursor: of each series the last point that is not behind it. */
function values({ known, x, y, at }) {
  if (at === null) return "";
  const found = known.map(({ label, points }) => {
    const point = points.findLast(([px]) => px <= at + 1e-9);
    return point === undefined ? null : `${label} ${(y.exact ?? y.text)(point[1])}`;
  });
  return [x.text(at), ...found.filter(Boolean)].join(" · ");
}

/** Move the cursor of the chart that the pointer is over, or that has the focus by arrow keys. */
export function inspect(event) {
  const svg = event.target.closest?.("svg.chart");
  const state = svg && drawn.get(svg.dataset.chart);
  if (!state) return;
  const xs = [...new Set(state.known.flatMap(({ points }) => points.map(([px]) => px)))].sort((a, b) => a - b);
  if (!xs.length) return;
  const at = state.at === null ? xs.length - 1 : xs.indexOf(nearest(xs, state.at));
  if (event.type === "keydown") {
    const moved = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: xs.length - 1 }[event.key];
    if (moved === undefined) return;
    event.preventDefault();
    state.at = xs[Math.min(xs.length - 1, Math.max(0, moved))];
  } else {
    const box = svg.getBoundingClientRect();
    const value = (((event.clientX - box.left) * state.width) / box.width - state.across(0)) / (state.across(1) - state.across(0));
    state.at = nearest(xs, value);
  }
  for (const [name, value] of Object.entries(cursorAt(state))) {
    if (value === null) svg.querySelector(".cursor").removeAttribute(name);
    else svg.querySelector(".cursor").setAttribute(name, value);
  }
  show(svg.parentNode.querySelector(".readout"), values(state));
}

function nearest(xs, value) {
  return xs.reduce((best, each) => (Math.abs(each - value) < Math.abs(best - value) ? each : best));
}

/** Return the end of an axis: above the greatest value, and above zero. */
export function end(values) {
  const greatest = values.reduce((most, value) => Math.max(most, value ?? 0), 0);
  return greatest > 0 ? 1.08 * greatest : 1;
}

/** Return ticks at even steps from zero to the end, about as many as given. */
function ticks(last, most, steps = null) {
  const step = steps?.find((each) => last / each <= most) ?? even(last / most);
  return Array.from({ length: Math.floor(last / step + 1e-9) + 1 }, (_, place) => place * step);
}

/** Return 1, 2 and 5 times the powers of ten on a logarithmic axis. */
function decades(start, last) {
  const first = Math.floor(Math.log10(start));
  const powers = Array.from({ length: Math.ceil(Math.log10(last)) - first + 1 }, (_, place) => 10 ** (first + place));
  return powers.flatMap((power) => [power, 2 * power, 5 * power]).filter((value) => value >= start && value <= last);
}

function even(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return power * [1, 2, 5, 10].find((each) => each * power >= least * (1 - 1e-9));
}
