/** Score and error, or quality, over the time of a run or of several. */

import { chart, end } from "./chart.js";
import { clock, metricLabel, percent, quality, si } from "./format.js";

const STEPS = [1, 2, 5, 10, 20, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
export const CURVE = "?curve=240";

/** Return both charts of one run; null before the first score. */
export function progress(answer, { status }, width) {
  const { score: now, best } = answer;
  if (!now.elapsed_seconds) return null;
  const name = qualityName([answer], status.metric);
  return [
    scores([{ label: "score", answer, key: "ops" }, { label: "regulated score", answer, key: "regulated" }], width,
      `Score over time: ${si(now.ops, "OPS")} after ${clock(now.elapsed_seconds)}; regulated ${si(now.regulated, "OPS")}`),
    best.length ? qualities([{ label: `best ${name}`, answer }], status.metric, width,
      `Best ${name} over time: ${qualityText([answer], status.metric)(value(best.at(-1), isError([answer])))} after ${clock(best.at(-1).elapsed_seconds)}`) : null,
  ];
}

/** Return a chart of scores: `lines` are {label, answer, key}. */
export function scores(lines, width, label) {
  const series = lines.map(({ label: name, answer, key }) => ({ label: name, points: points(answer).map((each) => [each.elapsed_seconds, each[key]]) }));
  const most = end(series.flatMap((each) => each.points.map(([, y]) => y)));
  return chart({ id: "score", label, series, x: time(lines), y: { end: most, text: (y) => si(y, "OPS") }, width, height: 220 });
}

/** Return a chart of the best error or quality so far: `lines` are {label, answer}. */
export function qualities(lines, metric, width, label) {
  const answers = lines.map(({ answer }) => answer);
  const error = isError(answers);
  const series = lines.map(({ label: name, answer }) => {
    const steps = answer.best.map((each) => [each.elapsed_seconds, value(each, error)]);
    return { label: name, points: steps.length ? [...steps, [answer.score.elapsed_seconds, steps.at(-1)[1]]] : [] };
  });
  const most = end(series.flatMap((each) => each.points.map(([, y]) => y)));
  const least = Math.min(...series.flatMap((each) => each.points.map(([, y]) => y)));
  const start = error && most > 5 * least && least > 0 ? 0.8 * least : 0;
  const text = error ? (y) => percent(y, y > 0 && y < 0.01 ? 2 : 0) : qualityText(answers, metric);
  return chart({ id: "quality", label, series, x: time(lines), y: { start, end: most, text, exact: qualityText(answers, metric) }, width, height: 180, stepped: true });
}

function points({ curve, score }) {
  return [...curve.filter(({ elapsed_seconds: seconds }) => seconds > 0 && seconds < score.elapsed_seconds), score];
}

function time(lines) {
  return { end: Math.max(1, ...lines.map(({ answer }) => answer.score.elapsed_seconds)), text: clock, steps: STEPS };
}

function isError(answers) {
  return answers.every(({ best }) => best.every(({ error }) => error !== null));
}

function value(point, error) {
  return error ? point.error : point.quality;
}

/** Return the name of the shown quality. */
export function qualityName(answers, metric) {
  return isError(answers) ? "error" : metricLabel(metric);
}

function qualityText(answers, metric) {
  return isError(answers) ? (y) => percent(y) : (y) => quality(y, metric);
}
