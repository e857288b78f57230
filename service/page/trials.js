/** The table of trials, which the service sorts, filters and pages. */

import { h, state, table } from "./dom.js";
import { capitalized, duration, figure, metricLabel, number, quality, si, whole } from "./format.js";
import { trialLink } from "./parts.js";

const ROWS = 25;
const HYPERPARAMETERS = ["batch_size", "kernel_size", "learning_rate", "momentum", "weight_decay"];

/** Return the query of a page of trials. */
export function trialsQuery({ filters, order, offset }, { ranges }) {
  const limits = Object.entries(ranges).map(([name, [least, most]]) => ["range", `${name}:${least}:${most}`]);
  return `?${new URLSearchParams([...Object.entries({ ...filters, ...order, offset, limit: ROWS }), ...limits])}`;
}

/** Return a page of trials; null if the run has none. */
export function trials({ trials: rows, total, offset }, { run, status, ranges }, width, { order, filters }) {
  if (!total && !Object.keys({ ...filters, ...ranges }).length) return null;
  const columns = [["Trial", "short", "started"], ["Place", "short"], ["State", "", "state"], ["Replica", "", "replica"], ["Round", "number", "round"],
    [capitalized(metricLabel(status.metric)), "number", "quality"], ["Epochs", "number", "epochs"],
    ...HYPERPARAMETERS.map((name) => [capitalized(metricLabel(name)), "number", name]), ["Parameters", "number", "parameters"],
    ["Depth", "number", "depth"], ["Operations", "number", "operations"], ["Time", "number", "seconds"]];
  const cells = (row) => [
    trialLink(run, row.id), trialLink(run, row.id, "tree", "in tree"), state(row.state), row.replica, `${row.round} ${row.phase}`,
    row.id === status.best_trial ? h("strong", {}, quality(row.best_quality, status.metric), " best") : quality(row.best_quality, status.metric),
    `${row.epochs} of ${row.epoch_limit}`, ...HYPERPARAMETERS.map((name) => figure(row.hyperparameters[name])), whole(row.parameters), row.depth,
    si(row.train_samples * row.train_operations + row.validation_samples * row.validation_operations, ""), duration(row.seconds),
  ];
  return [
    rows.length ? table("Trials", columns, rows.map(cells), "trials", { order, keys: rows.map(({ id }) => id) })
      : h("p", { class: "none" }, "No trial matches the filters."),
    pages(offset, rows.length, total, Object.keys(ranges).length ? " in the selected ranges" : ""),
  ];
}

function pages(offset, shown, total, where) {
  const last = Math.max(0, Math.ceil(total / ROWS) - 1) * ROWS;
  const button = (text, to, off) => h("button", { type: "button", "data-offset": to, disabled: off }, text);
  return h("nav", { class: "pages", "aria-label": "Pages of trials" },
    button("First", 0, offset === 0), button("Previous", Math.max(0, offset - ROWS), offset === 0),
    h("span", {}, shown ? `${whole(offset + 1)}–${whole(offset + shown)} of ${number(total, "trial")}` : number(total, "trial"), where),
    button("Next", offset + ROWS, offset >= last), button("Last", last, offset >= last));
}
