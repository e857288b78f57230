/** All runs, the latest first. */

import { headlineQuantities, text } from "./api.js";
import { obey, possible, queue, submitting, waiting } from "./changes.js";
import { bar, h, show, table } from "./dom.js";
import { duration, metricLabel, moment, number, percent, quality, quantityText, whole } from "./words.js";

const EVERY_MILLISECONDS = 1000;
const HEADINGS = { regulated: "Regulated", error: "Reached" };

/** Return the view of the list. */
export function listView(main, frame) {
  main.replaceChildren(document.getElementById("list-view").content.cloneNode(true));
  frame.title("Runs");
  const part = main.querySelector("[data-part=list]");
  const panel = main.querySelector("#queue");
  const inQueue = (which) => panel.querySelector(`[data-part=${which}]`);
  let allowed = null;
  let quantities = null;
  let over = null;
  obey(panel, inQueue("said"), frame);
  submitting(panel.querySelector("form"), inQueue("said"), frame);
  async function look(signal) {
    try {
      const answer = JSON.parse(await text("runs", signal));
      quantities ??= await headlineQuantities(signal);
      if (signal.aborted) return;
      frame.connection();
      frame.title("Runs", number(answer.runs.length, "run"));
      show(part, list(answer, quantities));
      allowed ??= await possible(signal);
      if (allowed.includes("submit")) await lookAtQueue(signal);
    } catch (error) {
      if (!signal.aborted) frame.connection(error);
    }
    if (!signal.aborted) setTimeout(look, EVERY_MILLISECONDS, signal);
  }
  async function lookAtQueue(signal) {
    const answer = JSON.parse(await text("queue", signal));
    if (signal.aborted) return;
    panel.hidden = false;
    show(inQueue("waiting"), waiting(answer));
    show(inQueue("queue"), queue(answer));
  }
  return {
    name: null,
    open() {
      if (over !== null) return;
      over = new AbortController();
      look(over.signal);
    },
    close() {
      over?.abort();
      over = null;
    },
    end() {
      this.close();
    },
  };
}

function list({ runs, loading, unreadable, foreign }, quantities) {
  const columns = [["Run", "names"], ["State"], ...quantities.map(({ name, page }) => [HEADINGS[name] ?? page, "number"]),
    ["Time", "number"], ["Progress"], ["Replicas", "number"], ["Workload"], ["Started", "short"], ["Rules"]];
  return [
    runs.length ? table("All runs", columns, runs.map((run) => row(run, quantities)), "runs stack")
      : h("p", { class: "none" }, loading.length ? "The runs are being read." : "There is no run in the folder yet."),
    loading.length ? h("p", { class: "lead", id: "loading" }, `Being read: ${loading.join(", ")}.`) : null,
    unreadable.length ? h("ul", { class: "notes", id: "unreadable" },
      unreadable.map(({ name, reason }) => h("li", {}, `${name} cannot be read: ${reason}`))) : null,
    foreign ? h("p", { class: "lead" }, `${number(foreign, "folder")} beside them ${foreign === 1 ? "is no run" : "are no runs"}.`) : null,
  ];
}

/** Return the error or, of a metric that has none, the quality itself. */
function reached({ figures: { error }, best_quality: best, metric }) {
  if (best === null) return "–";
  const [value, label] = error === null ? [quality(best, metric), metricLabel(metric)] : [percent(error), "error"];
  return h("span", {}, value, h("span", { class: "of" }, ` ${label}`));
}

function row(run, quantities) {
  const { elapsed_seconds: elapsed } = run.score;
  return [
    [h("a", { href: `#/runs/${encodeURIComponent(run.name)}` }, run.name),
      ...[run.tags.join(" "), run.note].filter(Boolean).map((text) => h("span", { class: "of" }, text))],
    [state(run.state), run.simulated ? " simulated" : null],
    ...quantities.map((quantity) => quantity.name === "error" ? reached(run) : quantityText(quantity, run.figures[quantity.name])),
    `${duration(elapsed)} of ${duration(run.hours * 3600)}`,
    bar(elapsed / (run.hours * 3600), `Time of ${run.name}`),
    placed(run.resources), run.workload, moment(run.started_utc),
    run.violated_rules.length ? h("span", { class: "reason" }, `breaks ${run.violated_rules.join(", ")}`) : "keeps all",
  ];
}

function placed({ replicas, hosts }) {
  return hosts ? `${whole(replicas)} on ${number(hosts, "host")}` : whole(replicas);
}

/** Return a run's state as a word with a mark. */
export function state(word) {
  return h("span", { class: `chip ${word.replaceAll(" ", "-")}` }, word);
}
