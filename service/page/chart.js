/** Lines over an axis, drawn at the width that there is, so that type is as large on a phone. */

import { h, s } from "./dom.js";

const MARGIN = { left: 76, right: 16, top: 10, bottom: 30 };
const CLOSE = 84; // Pixels between two labels below.

/**
 * Return a drawing.
 *
 * `series` are {label, kind, points: [[x, y], ...]} of kinds `first` and `second`, whose ys may be
 * null; `x` and `y` are {end, text(value), steps}: `steps` are the sizes that steps may have.
 */
export function chart({ label, series, x, y, width, height = 240 }) {
  const inner = { width: Math.max(120, width - MARGIN.left - MARGIN.right), height: height - MARGIN.top - MARGIN.bottom };
  const across = (value) => MARGIN.left + (inner.width * value) / x.end;
  const up = (value) => MARGIN.top + inner.height * (1 - value / y.end);
  const right = MARGIN.left + inner.width;
  const bottom = MARGIN.top + inner.height;
  return [
    s("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label },
      ticks(y.end, 4, y.steps).map((value) => [
        s("line", { class: "grid", x1: MARGIN.left, x2: right, y1: up(value), y2: up(value) }),
        s("text", { x: MARGIN.left - 8, y: up(value) + 4, "text-anchor": "end" }, y.text(value))]),
      ticks(x.end, Math.max(2, Math.floor(inner.width / CLOSE)), x.steps).map((value) =>
        s("text", { x: across(value), y: bottom + 20, "text-anchor": right - across(value) < CLOSE / 3 ? "end" : "middle" }, x.text(value))),
      s("line", { class: "axis", x1: MARGIN.left, x2: right, y1: bottom, y2: bottom }),
      series.map(({ kind, points }) => line(points.filter(([, value]) => value !== null), kind, across, up))),
    h("ul", { class: "legend" }, series.map(({ label: name, kind }) =>
      h("li", {}, s("svg", { class: "key line", viewBox: "0 0 12 12", "aria-hidden": "true" },
        s("line", { class: kind, x1: 0, x2: 12, y1: 6, y2: 6 })), name))),
  ];
}

function line(points, kind, across, up) {
  if (!points.length) return null;
  const [x, y] = points.at(-1);
  const path = points.map(([px, py], place) => `${place ? "L" : "M"}${across(px).toFixed(1)} ${up(py).toFixed(1)}`);
  return [s("path", { class: kind, d: path.join("") }), s("circle", { class: kind, cx: across(x), cy: up(y), r: 4 })];
}

/** Return what an axis ends at: no less than the greatest value, and above zero. */
export function end(values) {
  const greatest = Math.max(0, ...values.filter((value) => value !== null));
  return greatest > 0 ? 1.08 * greatest : 1;
}

/** Return at most so many even steps from zero to the end. */
function ticks(last, most, steps = null) {
  const step = steps?.find((each) => last / each <= most) ?? even(last / most);
  return Array.from({ length: Math.floor(last / step + 1e-9) + 1 }, (_, place) => place * step);
}

function even(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return power * [1, 2, 5, 10].find((each) => each * power >= least * (1 - 1e-9));
}
