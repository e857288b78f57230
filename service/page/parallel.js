/** Hyperparameters and objective of trials as parallel coordinates. */

import { rankOf } from "./color.js";
import { h, s } from "./dom.js";
import { capitalized, figure, metricLabel, quality, si, whole } from "./format.js";

const MARGIN = { side: 56, top: 34, bottom: 26 };
const HEIGHT = 320;
const LOGARITHMIC = 30; // Ratio of the greatest to the least value from which an axis is logarithmic.

/** Return the drawing of the best trials; null before the first evaluated trials. */
export function parallel({ trials, total, goal }, { run, status }, width) {
  const rows = trials.filter(({ best_quality: best }) => best !== null);
  if (rows.length < 2) return null;
  const { metric } = status;
  const axes = [...Object.keys(rows[0].hyperparameters).map((name) => axis(name, rows, (row) => row.hyperparameters[name])),
    axis("parameters", rows, (row) => row.parameters), axis("depth", rows, (row) => row.depth)].filter(({ values }) => values.length > 1);
  if (!axes.length) return null;
  axes.push(axis(metric, rows, (row) => row.best_quality, (value) => quality(value, metric)));
  const inner = Math.max(96 * (axes.length - 1), width - 2 * MARGIN.side);
  const across = (place) => MARGIN.side + (inner * place) / Math.max(1, axes.length - 1);
  const rank = rankOf(rows.map((row) => row.best_quality), goal);
  const stroke = (row) => `color-mix(in srgb, var(--curve) ${Math.round(100 * rank(row.best_quality))}%, var(--line))`;
  const full = inner + 2 * MARGIN.side;
  return [
    h("p", { class: "lead" }, `${rows.length < total ? `The ${whole(rows.length)} best of ${whole(total)}` : whole(rows.length)} trials. `,
      `Each line is a trial; its color shows ${metricLabel(metric)} (stronger is better). Select a line to see its trial.`),
    h("div", { class: "scroll", role: "region", "aria-label": "Chart: hyperparameters", tabindex: 0 },
      s("svg", { class: "parallel", width: full, height: HEIGHT, viewBox: `0 0 ${full} ${HEIGHT}`, role: "img", "aria-label": label(axes, rows, metric) },
        [...rows].reverse().map((row) => s("path", { stroke: stroke(row), "data-trial": row.id,
          d: axes.map(({ up, read }, place) => `${place ? "L" : "M"}${across(place).toFixed(1)} ${up(read(row)).toFixed(1)}`).join("") },
        s("title", {}, `${row.id}: ${axes.map((each) => `${each.title} ${each.text(each.read(row))}`).join(", ")}`))),
        axes.map((each, place) => [
          s("line", { class: "axis", x1: across(place), x2: across(place), y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }),
          s("text", { x: across(place), y: 16, "text-anchor": "middle" }, each.title),
          marks(each).map((value) => s("text", { class: "mark", x: across(place) + 5, y: each.up(value) + 4 }, each.text(value)))]))),
  ];
}

/** Return an axis: numbers on a linear or logarithmic scale, other values and none evenly spaced. */
function axis(name, rows, read, text = null) {
  const values = [...new Set(rows.map((row) => plain(read(row))))];
  const numbers = values.every((value) => typeof value === "number");
  values.sort(numbers ? (a, b) => a - b : undefined);
  const logarithmic = numbers && values[0] > 0 && values.at(-1) / values[0] >= LOGARITHMIC;
  const scaled = (value) => (numbers ? (logarithmic ? Math.log(value) : value) : values.indexOf(value));
  const [low, high] = [scaled(values[0]), scaled(values.at(-1))];
  const inner = HEIGHT - MARGIN.top - MARGIN.bottom;
  const large = values.at(-1) < 1.1 * values[0] ? whole : (value) => si(value, ""); // Close values differ in later digits.
  return {
    title: capitalized(metricLabel(name)), values, read,
    text: text ?? ((value) => (typeof value === "number" ? (Math.abs(value) >= 1e4 ? large(value) : figure(value)) : String(plain(value)))),
    up: (value) => MARGIN.top + inner * (1 - (high > low ? (scaled(plain(value)) - low) / (high - low) : 0.5)),
  };
}

function plain(value) {
  return value === null ? "none" : typeof value === "object" ? JSON.stringify(value) : value;
}

/** Return the values that have a label: those at least 40 pixels apart. */
function marks({ values, up }) {
  let last = Infinity;
  return values.filter((value) => {
    const far = last - up(value) >= 40;
    if (far) last = up(value);
    return far;
  });
}

function label(axes, rows, metric) {
  const best = rows[0];
  return `Hyperparameters of ${rows.length} trials by ${metricLabel(metric)}; the best, ${best.id}, has ${axes.map((each) => `${each.title} ${each.text(each.read(best))}`).join(", ")}`;
}
