/** The parts of a run's view: functions from the service's answers to elements. */

import { hasToken } from "./api.js";
import { bar, h, state, table } from "./dom.js";
import { capitalized, duration, metricLabel, number, percent, quality, quantityText, si, whole } from "./format.js";

const SHOWN_PROBLEMS = 20;

/** Return the line below the run's name. */
export function subtitle(status) {
  const facts = [status.resources.summary, `${duration(status.hours * 3600)} requested`,
    status.simulated ? "simulated" : null, status.machine || null,
    status.clock ? `${duration(status.clock.queue_seconds)} in the queue, not charged` : null];
  return [state(status.state), facts.filter(Boolean).map((fact) => h("span", {}, fact))];
}

/** Return the problems that need attention: waits, defects, an unplanned end. */
export function alerts(status) {
  const waiting = status.storage.filter((each) => each.waiting);
  const problems = [
    ["gone", "silent"].includes(status.state) ? status.reason : null,
    ...waiting.map((each) => `${each.component} waits for storage: ${each.last_reason}`),
    status.scheduler_problem ? `The scheduler does not respond: ${status.scheduler_problem}` : null,
    ...status.problems.slice(0, SHOWN_PROBLEMS),
    status.problems.length > SHOWN_PROBLEMS ? `and ${number(status.problems.length - SHOWN_PROBLEMS, "more problem")}` : null,
  ].filter(Boolean);
  return problems.length
    ? h("div", { class: "note", role: "note", id: "problems" }, h("strong", {}, number(problems.length, "problem")),
      h("ul", {}, problems.map((problem) => h("li", {}, problem))))
    : null;
}

/** Return the headline figures, models and time. */
export function headline(status, quantities) {
  const asked = status.hours * 3600;
  return [
    h("dl", { class: "figures" },
      quantities.map((quantity) => headlineFigure(status, quantity)),
      models(status.models),
      figure(status.state === "ended" ? "Time" : "Time left", "left",
        duration(status.state === "ended" ? status.elapsed_seconds : status.remaining_seconds),
        h("span", { class: "exact" }, `${duration(status.elapsed_seconds)} of ${duration(asked)}`))),
    h("div", { class: "whole" }, bar(status.elapsed_seconds / asked, "Time of the run")),
    rules(status),
  ];
}

/** Return one headline figure: the score with its operations, the error with its quality. */
function headlineFigure(status, quantity) {
  const { name, page, format, unit } = quantity;
  const value = status.figures[name];
  if (name === "error") return reached(status);
  const id = name === "ops" ? "score" : name;
  const text = value === null ? none(name === "regulated" ? status.error_unavailable_reason : "")
    : format === "si" ? large(value, unit) : quantityText(quantity, value);
  return name === "ops"
    ? figure(page, id, text, exact(`${whole(status.score.operations)} operations`), "first") : figure(page, id, text);
}

/** Return the error or, if the metric has none, the quality. */
function reached(status) {
  const { score, metric, best_trial: trial } = status;
  const label = metricLabel(metric);
  const best = quality(status.best_quality, metric);
  if (score.error === null && trial !== null)
    return figure(capitalized(label), "quality", best, exact(`the best, ${trial}${baselineText(status)}`));
  const whose = trial === null ? null : exact(`best ${label} ${best}, ${trial}${baselineText(status)}`);
  return figure("Error", "error", score.error === null ? none(status.error_unavailable_reason) : percent(score.error), whose);
}

/** Return the time to target and the models per minute of a run without a search. */
function models(found) {
  if (!found) return null;
  const { started, reached: good, completed, target } = found;
  const many = found.concurrent > 1 ? `${found.concurrent} concurrent models` : "one model at a time";
  return [
    found.median_seconds === null ? null
      : figure("Time to target", "median", duration(found.median_seconds), exact(`the median of ${good} of ${completed} models`)),
    figure("Models per minute", "models",
      found.models_per_minute === null ? none(target === null ? `none of ${started} has finished` : `none of ${started} has reached ${target}`)
        : String(Number(found.models_per_minute.toPrecision(4))),
      exact(`${found.scaling} scaling: ${many}; ${number(completed, "model")} ended`)),
  ];
}

function exact(text) {
  return h("span", { class: "exact" }, text);
}

function none(reason) {
  return [h("span", { class: "none" }, "none"), exact(reason)];
}

/** Return the quality of the baseline, where it was measured. */
function baselineText({ baseline, metric }) {
  return baseline ? `; that of ${baseline.predictor}: ${quality(baseline.quality, metric)}` : "";
}

function figure(term, id, value, more = null, kind = null) {
  return h("div", { class: kind }, h("dt", {}, term), h("dd", {}, h("span", { id }, value), more));
}

function large(value, unit) {
  const [digits, prefixed] = si(value, unit).split(" ");
  return [digits, prefixed === undefined ? null : h("span", { class: "unit" }, ` ${prefixed}`)];
}

function rules({ violations, state: now }) {
  const sofar = now === "ended" ? "" : " so far";
  if (!violations.length) return h("p", { class: "verdict good" }, h("strong", {}, `VALID${sofar}`), " The run satisfies every rule.");
  const violated = new Set(violations.map(({ rule }) => rule)).size;
  return h("details", { class: "verdict bad" },
    h("summary", {}, h("strong", {}, `INVALID${sofar}`), ` ${number(violated, "rule")} violated`),
    h("dl", {}, violations.map(({ rule, reason }) => [h("dt", {}, rule), h("dd", {}, reason)])));
}

const FLIGHT = [["Trial", "short"], ["Replica"], ["Round", "number"], ["State"], ["Epoch", "epochs"], ["Best", "number"],
  ["Time", "number"], ["Left, at most", "number"]];

/** Return the trials in progress; null without any. */
export function inFlight({ trials, total }, { run, status }) {
  if (!total) return null;
  return [
    table("Trials in progress", FLIGHT, trials.map((each) => flight(each, run, status.metric)), "flight stack", { keys: trials.map(({ trial }) => trial.id) }),
    total > trials.length ? h("p", { class: "lead" }, `The first ${trials.length} of ${whole(total)}.`) : null,
  ];
}

function flight({ trial, epoch, epoch_fraction: fraction, remaining_seconds: left }, run, metric) {
  const done = (epoch - 1 + fraction) / trial.epoch_limit;
  return [
    trialLink(run, trial.id), trial.replica, `${trial.round} ${trial.phase}`, trial.state,
    [bar(done, `Epochs of ${trial.id}`), h("span", {}, `${epoch} of ${trial.epoch_limit}, ${percent(fraction, 0)} of it`)],
    quality(trial.best_quality, metric), duration(trial.seconds), duration(left),
  ];
}

/** Return a link to a trial of a run; `place` is the part that it leads to. */
export function trialLink(run, id, place = "trials", text = id) {
  const label = text === id ? null : `${id}: ${text}`;
  return h("a", { href: `#/runs/${encodeURIComponent(run)}/${place}/${encodeURIComponent(id)}`, "aria-label": label }, text);
}

/** Return the events, latest first. */
export function events({ events: latest }) {
  if (!latest.length) return null;
  return h("ol", { class: "events", role: "list", tabindex: 0, "aria-label": "Events, latest first" }, [...latest].reverse().map((event) =>
    h("li", { "data-number": event.number, "data-key": event.number, class: event.kind },
      h("span", { class: "when" }, event.elapsed_seconds === null ? "" : duration(event.elapsed_seconds)),
      h("span", { class: "component" }, event.component), h("span", {}, event.text))));
}

/** Return the end of a replica's output. */
export function output({ lines }, context, width, { filters: { replica } }) {
  if (!lines.length) return h("p", { class: "none" }, `${replica} has printed nothing.`);
  return [
    h("p", { class: "lead" }, `The last ${number(lines.length, "line")}, updated while the end is visible.`),
    h("pre", { class: "output", role: "region", "aria-label": `Output of ${replica}`, tabindex: 0 }, lines.join("\n")),
  ];
}

/** Return links to the report's files. */
export function files({ files: found }, { run }) {
  const shown = found.filter(({ name }) => ["report.html", "report.json", "result.txt", "run.yaml"].includes(name));
  if (!shown.length) return null;
  const address = (name) => `api/v1/runs/${encodeURIComponent(run)}/files/${encodeURIComponent(name)}`;
  return h("p", { class: "lead files" }, "Files: ", shown.flatMap(({ name }, place) =>
    [place ? ", " : null, hasToken() ? name : h("a", { href: address(name) }, name)]));
}
