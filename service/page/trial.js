/** One trial: hyperparameters, learning curve, parent and children, layers. */

import { chart, end } from "./chart.js";
import { h, table } from "./dom.js";
import { duration, figure, metricLabel, percent, quality, si, whole } from "./format.js";
import { trialLink } from "./parts.js";

const LAYERS = [["Layer", "short"], ["Kind"], ["Reads"], ["Output"], ["Parameters", "number"], ["Forward", "number"], ["Backward", "number"]];
const PHRASES = {
  deeper: ({ kernel, after }) => `${kernel}×${kernel} convolution after ${after}`,
  wider: ({ producer, channels }) => `${producer} widened to ${channels} channels`,
  skip: ({ source, target }) => `skip from ${source} to ${target}`,
  kernel: ({ conv, kernel }) => `kernel of ${conv} grown to ${kernel}×${kernel}`,
};

/** Return the details of a trial. */
export function trialDetail(detail, { run, status }, width) {
  const { trial, hyperparameters: used, curve, layers, children } = detail;
  const metric = status?.metric ?? "accuracy";
  return [
    h("p", {}, h("a", { href: `#/runs/${encodeURIComponent(run)}`, class: "close" }, "Close"), " ", trialLink(run, trial.id, "tree", "Show in the tree")),
    h("dl", { class: "pairs" },
      pair("State", [trial.state, trial.reason ? `: ${trial.reason}` : null]),
      pair("Trained by", `${trial.replica}, round ${trial.round} ${trial.phase}, for ${duration(trial.seconds)}`),
      pair("Parent", trial.parent === null ? "none (initial network)" : trialLink(run, trial.parent)),
      pair("Changes", trial.morphisms.map(phrase).join("; ") || "none"),
      pair("Children", children.length ? h("span", {}, children.slice(0, 40).flatMap((child, place) => [place ? ", " : null, trialLink(run, child)]),
        children.length > 40 ? ` and ${children.length - 40} more` : null) : "none so far"),
      pair(`Best ${metricLabel(metric)}`, quality(trial.best_quality, metric)),
      trial.predicted_accuracy === null ? null : pair("Predicted accuracy", percent(trial.predicted_accuracy)),
      pair("Epochs", `${trial.epochs} of at most ${trial.epoch_limit}`),
      pair("Hyperparameters", hyperparameters(used)),
      pair("Network", `${whole(trial.parameters)} parameters, depth ${trial.depth}, ${whole(layers.length)} layers`),
      pair("Operations per sample", `${whole(trial.train_operations)} in training, ${whole(trial.validation_operations)} in validation`),
      detail.notes.length ? pair("Notes", detail.notes.join("; ")) : null),
    h("h3", {}, `Learning curve (${metricLabel(metric)})`),
    curve.length ? drawn(curve, metric, width) : h("p", { class: "none" }, "No evaluation has been completed yet."),
    h("h3", {}, "Layers"),
    h("p", { class: "lead" }, "Operations are per sample. Layers that a morphism inserted are marked."),
    table("Layers", LAYERS, layers.map(layer), "layers"),
  ];
}

function pair(term, value) {
  return [h("dt", {}, term), h("dd", {}, value)];
}

function hyperparameters(used) {
  return Object.entries(used).filter(([, value]) => value !== null && typeof value !== "object")
    .map(([name, value]) => `${metricLabel(name)} ${typeof value === "number" ? figure(value) : value}`).join(", ");
}

function phrase(morphism) {
  return PHRASES[morphism.kind]?.(morphism) ?? Object.entries(morphism).map(([key, value]) => `${key} ${value}`).join(", ");
}

function drawn(curve, metric, width) {
  const latest = curve.at(-1);
  const values = curve.map((point) => point.quality);
  return chart({
    id: "trial",
    label: `${metricLabel(metric)} by epoch: ${quality(latest.quality, metric)} after epoch ${latest.epoch}`,
    series: [{ label: metricLabel(metric), points: curve.map((point) => [point.epoch, point.quality]) }],
    x: { end: Math.max(2, latest.epoch), text: (value) => `epoch ${value}`, steps: [1, 2, 5, 10, 20, 50, 100] },
    y: { end: metric === "accuracy" ? 1 : end(values), text: (value) => (metric === "accuracy" ? percent(value, 0) : quality(value, metric)), exact: (value) => quality(value, metric) },
    width, height: 200,
  });
}

function layer(each) {
  return [
    [each.name, each.inserted ? h("strong", { class: "inserted" }, " new") : null], each.kind, each.inputs.join(", ") || "–",
    each.output.join("×"), whole(each.parameters), si(each.forward_operations, ""), si(each.backward_operations, ""),
  ];
}
