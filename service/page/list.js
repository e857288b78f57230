/** All runs, the latest first. */

import { text } from "./api.js";
import { obey, possible, queue, submitting, waiting } from "./changes.js";
import { bar, h, show, table } from "./dom.js";
import { duration, measureLabel, moment, number, percent, quality, si, whole } from "./words.js";

const EVERY_MILLISECONDS = 1000;
const COLUMNS = [["Run", "names"], ["State"], ["Score", "number"], ["Regulated", "number"], ["Reached", "number"],
  ["Time", "number"], ["Progress"], ["Replicas", "number"], ["Workload"], ["Started", "short"], ["Rules"]];

/** Return the view of the list. */
export function listView(main, frame) {
  main.replaceChildren(document.getElementById("list-view").content.cloneNode(true));
  frame.title("Runs");
  const part = main.querySelector("[data-part=list]");
  const panel = main.querySelector("#queue");
  const inQueue = (which) => panel.querySelector(`[data-part=${which}]`);
  let allowed = null;
  let over = null;
  obey(panel, inQueue("said"), frame);
  submitting(panel.querySelector("form"), inQueue("said"), frame);
  async function look(signal) {
    try {
      const answer = JSON.parse(await text("runs", signal));
      if (signal.aborted) return;
      frame.connection();
      frame.title("Runs", number(answer.runs.length, "run"));
      show(part, list(answer));
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

function list({ runs, loading, unreadable, foreign }) {
  return [
    runs.length ? table("All runs", COLUMNS, runs.map(row), "runs stack")
      : h("p", { class: "none" }, loading.length ? "The runs are being read." : "There is no run in the folder yet."),
    loading.length ? h("p", { class: "lead", id: "loading" }, `Being read: ${loading.join(", ")}.`) : null,
    unreadable.length ? h("ul", { class: "notes", id: "unreadable" },
      unreadable.map(({ name, reason }) => h("li", {}, `${name} cannot be read: ${reason}`))) : null,
    foreign ? h("p", { class: "lead" }, `${number(foreign, "folder")} beside them ${foreign === 1 ? "is no run" : "are no runs"}.`) : null,
  ];
}

function row(run) {
  const { elapsed_seconds: elapsed, ops, regulated, error } = run.score;
  const reached = error === null
    ? [quality(run.best_quality, run.measure), measureLabel(run.measure)] : [percent(error), "error"];
  return [
    h("a", { href: `#/runs/${encodeURIComponent(run.name)}` }, run.name),
    [state(run.state), run.simulated ? " simulated" : null],
    si(ops, "OPS"), si(regulated, "OPS"), run.best_quality === null ? "–" : h("span", {}, reached[0], h("span", { class: "of" }, ` ${reached[1]}`)),
    `${duration(elapsed)} of ${duration(run.hours * 3600)}`,
    bar(elapsed / (run.hours * 3600), `Time of ${run.name}`),
    placed(run.resources), run.workload, moment(run.started_utc),
    run.broken.length ? h("span", { class: "reason" }, `breaks ${run.broken.join(", ")}`) : "keeps all",
  ];
}

function placed({ replicas, hosts }) {
  return hosts ? `${whole(replicas)} on ${number(hosts, "host")}` : whole(replicas);
}

/** Return a run's state as a word with a mark. */
export function state(word) {
  return h("span", { class: `chip ${word.replaceAll(" ", "-")}` }, word);
}
