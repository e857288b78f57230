/** The list of runs, with a search, filters and the selection for a comparison. */

import { headlineQuantities, polling, text } from "./api.js";
import { obey, possible, queue, waiting } from "./changes.js";
import { bar, h, reordered, show, state, table } from "./dom.js";
import { submitForm } from "./form.js";
import { duration, metricLabel, moment, number, percent, quality, quantityText, whole } from "./format.js";

const INTERVAL_MILLISECONDS = 1000;
const HEADINGS = { regulated: "Regulated", error: "Best quality" };
const KEYS = {
  name: (run) => run.name, state: (run) => run.state, time: (run) => run.score.elapsed_seconds,
  replicas: (run) => run.resources.replicas, workload: (run) => run.workload, started: (run) => run.started_utc ?? Infinity, rules: (run) => run.violated_rules.length,
};

/** Return the view of the list. */
export function listView(main, frame) {
  main.replaceChildren(document.getElementById("list-view").content.cloneNode(true));
  frame.title("Runs");
  const part = main.querySelector("[data-part=list]");
  const filters = main.querySelector("#filters");
  const panel = main.querySelector("#queue");
  const inQueue = (which) => panel.querySelector(`[data-part=${which}]`);
  const chosen = new Set();
  let order = { sort: "started", descending: true };
  let latest = null;
  let allowed = null;
  let quantities = null;
  obey(panel, inQueue("outcome"), frame);
  submitForm(panel.querySelector("#submit"), inQueue("outcome"), frame);

  function draw() {
    if (latest === null) return;
    const { value: state } = filters.elements.state;
    const sought = filters.elements.search.value.trim().toLowerCase();
    const shown = latest.runs.filter((run) => (!state || run.state === state) && [run.name, run.workload, run.preset, run.dataset, run.note, ...run.tags].some((each) => each.toLowerCase().includes(sought)));
    const states = [...new Set(latest.runs.map((run) => run.state))].sort();
    show(filters.elements.state, h("option", { value: "", "data-key": "" }, "all"), states.map((each) => h("option", { "data-key": each }, each)));
    show(part, list({ ...latest, runs: sorted(shown, order) }, latest.runs.length, quantities, order, chosen));
    const names = [...chosen].filter((name) => latest.runs.some((run) => run.name === name));
    show(main.querySelector("[data-part=compare]"), names.length < 2 ? "Select runs to compare them."
      : h("a", { href: `#/compare/${names.map(encodeURIComponent).join("/")}` }, `Compare ${names.length} runs`));
  }

  async function look(signal) {
    const answer = JSON.parse(await text("runs", signal));
    quantities ??= await headlineQuantities(signal);
    if (signal.aborted) return;
    frame.title("Runs", number(answer.runs.length, "run"));
    latest = answer;
    draw();
    allowed ??= await possible(signal);
    if (allowed.includes("submit")) await lookAtQueue(signal);
  }

  async function lookAtQueue(signal) {
    const answer = JSON.parse(await text("queue", signal));
    if (signal.aborted) return;
    panel.hidden = false;
    show(inQueue("waiting"), waiting(answer));
    show(inQueue("queue"), queue(answer));
  }

  filters.addEventListener("submit", (event) => event.preventDefault());
  filters.addEventListener("input", draw);
  part.addEventListener("change", ({ target }) => {
    if (target.checked) chosen.add(target.value);
    else chosen.delete(target.value);
    draw();
  });
  part.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-sort]");
    if (button === null) return;
    order = reordered(order, button.dataset.sort);
    draw();
  });
  return polling(frame, INTERVAL_MILLISECONDS, look);
}

/** Return runs in an order; runs without a value are last. */
function sorted(runs, { sort, descending }) {
  const read = KEYS[sort] ?? ((run) => run.figures[sort] ?? null);
  const sign = descending ? -1 : 1;
  const compared = (a, b) => (a === null || b === null ? Number(a === null) - Number(b === null) : sign * (a < b ? -1 : a > b ? 1 : 0));
  return [...runs].sort((a, b) => compared(read(a), read(b)));
}

function list({ runs, loading, unreadable, foreign }, total, quantities, order, chosen) {
  const columns = [["Run", "names", "name"], ["State", "", "state"], ...quantities.map(({ name, page }) => [HEADINGS[name] ?? page, "number", name]),
    ["Time", "load", "time"], ["Replicas", "number", "replicas"], ["Workload", "", "workload"], ["Started", "short", "started"], ["Rules", "", "rules"]];
  return [
    runs.length ? table("All runs", columns, runs.map((run) => row(run, quantities, chosen)), "runs stack", { order, keys: runs.map(({ name }) => name) })
      : h("p", { class: "none" }, total ? "No run matches the filters." : loading.length ? "The runs are being read." : "There is no run in the folder yet."),
    loading.length ? h("p", { class: "lead", id: "loading" }, `Being read: ${loading.join(", ")}.`) : null,
    unreadable.length ? h("ul", { class: "notes", id: "unreadable" },
      unreadable.map(({ name, reason }) => h("li", {}, `${name} cannot be read: ${reason}`))) : null,
    foreign ? h("p", { class: "lead" }, `${number(foreign, "other folder")} ${foreign === 1 ? "is not a run" : "are not runs"}.`) : null,
  ];
}

/** Return the error or, if the metric has none, the quality. */
function reached({ figures: { error }, best_quality: best, metric }) {
  if (best === null) return "–";
  const [value, label] = error === null ? [quality(best, metric), metricLabel(metric)] : [percent(error), "error"];
  return h("span", {}, value, h("span", { class: "of" }, ` ${label}`));
}

function row(run, quantities, chosen) {
  return [
    [h("input", { type: "checkbox", value: run.name, "aria-label": `Compare ${run.name}`, checked: chosen.has(run.name) }),
      h("a", { href: `#/runs/${encodeURIComponent(run.name)}` }, run.name),
      ...[run.tags.join(" "), run.note].filter(Boolean).map((text_) => h("span", { class: "of" }, text_))],
    [state(run.state), run.simulated ? " simulated" : null],
    ...quantities.map((quantity) => quantity.name === "error" ? reached(run) : quantityText(quantity, run.figures[quantity.name])),
    [bar(run.score.elapsed_seconds / (run.hours * 3600), `Time of ${run.name}`),
      h("span", {}, `${duration(run.score.elapsed_seconds)} of ${duration(run.hours * 3600)}`)],
    placed(run.resources), [run.workload, h("span", { class: "of" }, [run.dataset, run.preset].filter(Boolean).join(", "))], moment(run.started_utc), rules(run.violated_rules),
  ];
}

function rules(violated) {
  if (!violated.length) return "all satisfied";
  return h("details", {}, h("summary", {}, `${violated.length} violated`), h("span", { class: "reason" }, violated.join(", ")));
}

function placed({ replicas, hosts }) {
  return hosts ? `${whole(replicas)} on ${number(hosts, "host")}` : whole(replicas);
}
