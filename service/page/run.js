/** One run: the events of the service, and the parts that are requested when they come. */

import { headlineQuantities, listen, ofRun, text } from "./api.js";
import { obey, possible, runChanges } from "./changes.js";
import { h, reordered, show } from "./dom.js";
import { machines, nodeAt, nodeText, nodesOf, paintMap, queues, telemetry, worded } from "./machines.js";
import { parallel, selectRanges } from "./parallel.js";
import { alerts, events, files, headline, inFlight, output, subtitle } from "./parts.js";
import { CURVE, progress } from "./progress.js";
import { timeSplit } from "./time.js";
import { tree, walk } from "./tree.js";
import { trialDetail } from "./trial.js";
import { trials, trialsQuery } from "./trials.js";

const EVENTS = 100;
const LOADING = "The run's records are being read.";
const RETRY_MILLISECONDS = 500;
const IDLE_FACTOR = 400; // A part is drawn at most for 0.25 % of the time.
const INTERVAL_MILLISECONDS = 5000; // A run that has ended sends no events, but may get its report.
/**
 * The parts: the request, its minimum interval in seconds, and the text without content, which
 * hides the section once the run has ended. `path` is null while there is nothing to request;
 * `pathOf` returns the path for the filters of a part that is requested only with a certain one.
 */
const PARTS = [
  { part: "in-flight", path: ["in-flight"], query: () => "?limit=64", seconds: 0.4, draw: inFlight, none: "No trial is in progress." },
  { part: "score", path: ["score"], query: () => CURVE, seconds: 4, draw: progress, none: "There is no score yet." },
  { part: "time", path: ["time"], query: () => "", seconds: 4, draw: timeSplit, none: "The clock has not started." },
  { part: "trials", path: ["trials"], query: trialsQuery, seconds: 2, draw: trials, none: "No trial has started yet." },
  { part: "parallel", path: ["trials"], query: () => "?sort=quality&descending=true&limit=500", seconds: 10, draw: parallel, none: "No hyperparameter differs between evaluated trials." },
  { part: "tree", path: ["tree"], query: (_, { trial }) => `?limit=200${trial === null ? "" : `&trial=${encodeURIComponent(trial)}`}`, seconds: 2, draw: tree, none: "No trial has started yet." },
  { part: "trial", path: null, query: () => "", seconds: 2, draw: trialDetail, none: "The trial is being read." },
  { part: "telemetry", path: null, query: ({ filters }) => `?points=240&host=${encodeURIComponent(filters.host)}`, seconds: 4, draw: telemetry, none: "The node has reported no telemetry." },
  { part: "events", path: null, pathOf: ({ kind }) => (kind ? ["events"] : null), query: ({ filters }) => `?limit=${EVENTS}&kind=${encodeURIComponent(filters.kind)}`, seconds: 1, draw: events, none: "There are no such events." },
  { part: "output", path: null, pathOf: ({ replica }) => (replica ? ["replicas", replica, "output"] : null), query: () => "?limit=200", seconds: 2, draw: output, none: "Select a replica to read its output." },
  { part: "files", path: ["files"], query: () => "", seconds: 10, draw: files, none: "" },
];

/** Return the view of a run. */
export function runView(main, frame, name) {
  main.replaceChildren(document.getElementById("run-view").content.cloneNode(true));
  frame.title(name);
  const part = (which) => main.querySelector(`[data-part=${which}]`);
  const panel = main.querySelector("#trial");
  const map = main.querySelector("canvas");
  const hosts = main.querySelector("#host");
  const coloring = main.querySelector("#coloring");
  const replicas = main.querySelector("[data-of=output] select");
  const context = { run: name, status: null, trial: null, ranges: {} };
  // Thousands of replicas and nodes are requested as seldom as they are drawn.
  const machinesPart = { part: "machines", path: ["status"], query: () => "", seconds: 1, draw: drawMachines, none: "No replica has been launched yet." };
  const parts = [...PARTS, machinesPart].map((each) => ({ ...each, requested: -Infinity, cost: 0, busy: false, answer: null, offset: 0, filters: {}, order: { sort: "started", descending: true } }));
  const named = (which) => parts.find((each) => each.part === which);
  let allowed = [];
  let quantities = [];
  let latest = [];
  let last = null;
  let nodes = [];
  let over = null;
  let silence = null;
  let timer = null;

  function hear(event, data) {
    frame.connection();
    if (event === "status") {
      context.status = data;
      frame.title(name, subtitle(data));
      show(part("alerts"), alerts(data));
      show(part("headline"), headline(data, quantities));
      show(part("changes"), runChanges(name, data.state, allowed));
      refreshAll();
    } else if (event === "happened") {
      keep([data]);
      refreshAll();
    } else {
      show(part("alerts"), note(event === "loading" ? LOADING : data.detail));
    }
  }

  function keep(added) {
    latest = [...latest, ...added].slice(-EVENTS);
    last = latest.at(-1)?.number ?? last;
    if (named("events").path === null) fill("events", events({ events: latest }));
  }

  /** Show the content of a part; without any, its text, or nothing once the run has ended. */
  function fill(which, content) {
    const { none } = named(which);
    const section = part(which).closest("section");
    if (section.hasAttribute("data-optional")) section.hidden = content === null && context.status?.state === "ended";
    show(part(which), content ?? (none ? h("p", { class: "none" }, none) : null));
  }

  function drawMachines(answer) {
    const status = worded(answer);
    nodes = nodesOf(status);
    offer(hosts, nodes.map(({ host }) => host));
    offer(replicas, ["", ...status.replicas.map(({ id }) => id)]);
    return machines(status, nodes, coloring.value);
  }

  function drawMap() {
    main.querySelector("#map").hidden = nodes.length < 2;
    if (nodes.length > 1) paintMap(map, nodes, coloring.value, hosts.value);
    selectNode();
  }

  function offer(field, names) {
    const before = [...field.options].map(({ value }) => value);
    if (names.length === before.length && names.every((each, place) => each === before[place])) return;
    show(field, names.map((each) => h("option", { "data-key": each, value: each }, each || "none")));
  }

  function selectNode() {
    const found = nodes.find(({ host }) => host === hosts.value);
    show(part("node"), found ? nodeText(found, queues(context.status)) : "");
    const each = named("telemetry");
    const host = found?.node ? found.host : null;
    part("telemetry").hidden = host === null;
    if (host === (each.filters.host ?? null)) return;
    restart(each, { path: host === null ? null : ["telemetry"], filters: { host } });
  }

  function refreshAll() {
    parts.forEach(refresh);
  }

  /** Request a part again at once, because its request has changed. */
  function restart(each, changes) {
    Object.assign(each, changes, { requested: -Infinity, answer: null });
    refresh(each);
  }

  function request(each) {
    return each.path === null ? null : ofRun(name, ...each.path) + each.query(each, context);
  }

  async function refresh(each) {
    const asked = request(each);
    if (asked === null || over === null || context.status === null || each.busy || performance.now() - each.requested < Math.max(each.seconds * 1000, IDLE_FACTOR * each.cost)) return;
    const { signal } = over;
    each.busy = true;
    each.requested = performance.now();
    try {
      const answer = await text(asked, signal);
      if (answer === null) {
        each.requested = -Infinity;
        later(() => refresh(each), RETRY_MILLISECONDS, signal);
      } else if (answer !== each.answer && !signal.aborted && asked === request(each) && atEnd(each)) {
        each.answer = answer;
        draw(each);
      }
    } catch (error) {
      if (!signal.aborted && asked === request(each)) {
        each.answer = null; // Draw the next answer even if it equals the previous one.
        show(part(each.part), h("p", { class: "none" }, error.message));
      }
    } finally {
      each.busy = false;
      if (asked !== request(each)) restart(each, {});
    }
  }

  function draw(each) {
    if (each.answer === null || each.path === null) return;
    const width = Math.max(260, Math.floor(part(each.part).clientWidth));
    const began = performance.now();
    const follows = atEnd(each);
    fill(each.part, each.draw(JSON.parse(each.answer), context, width, each));
    if (each.part === "machines") drawMap();
    each.cost = performance.now() - began;
    if (each.part === "tree") reveal();
    if (follows) part(each.part).querySelector("pre")?.scrollTo(0, Number.MAX_SAFE_INTEGER);
  }

  /** Return whether the end of a part's text is visible: new lines would move what is read above it. */
  function atEnd(each) {
    const text_ = part(each.part).querySelector("pre");
    return text_ === null || text_.scrollHeight - text_.scrollTop - text_.clientHeight < 4;
  }

  /** Scroll the tree, but not the page, to the selected network. */
  function reveal() {
    const node = main.querySelector("svg.networks [aria-current] circle");
    const region = node?.closest(".scroll");
    if (!node || region.dataset.trial === context.trial) return;
    region.dataset.trial = context.trial;
    region.scrollTo(node.cx.baseVal.value - region.clientWidth / 2, node.cy.baseVal.value - region.clientHeight / 2);
  }

  /** Read the latest events, then listen to those after them. */
  async function begin(signal) {
    try {
      const answer = last === null ? await text(`${ofRun(name, "events")}?limit=${EVENTS}`, signal) : null;
      if (signal.aborted) return;
      if (answer === null && last === null) {
        show(part("alerts"), note(LOADING));
        later(() => begin(signal), RETRY_MILLISECONDS, signal);
        return;
      }
      allowed = await possible(signal);
      quantities = await headlineQuantities(signal);
      if (answer !== null) {
        const read = JSON.parse(answer);
        keep(read.events);
        last ??= read.last;
      }
      silence = listen(`${ofRun(name, "events", "stream")}?seconds=0.5&summary=true`, last, { hear, lost: frame.connection });
    } catch (error) {
      if (signal.aborted) return;
      frame.connection(error);
      later(() => begin(signal), 2 * RETRY_MILLISECONDS, signal);
    }
  }

  function later(work, milliseconds, signal) {
    setTimeout(() => signal.aborted || work(), milliseconds);
  }

  function redraw() {
    parts.forEach(draw);
  }

  function filtered(form) {
    const filters = Object.fromEntries([...new FormData(form)].filter(([, value]) => value !== ""));
    const each = named(form.dataset.of);
    restart(each, { filters, path: each.pathOf ? each.pathOf(filters) : each.path, offset: 0 });
    if (each.part === "events") keep([]);
    if (each.part === "output") fill("output", each.path && h("p", { class: "none" }, "Loading."));
  }

  for (const form of main.querySelectorAll("form[data-of]")) {
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("change", () => filtered(form));
  }
  part("trials").addEventListener("click", (event) => {
    const { sort, offset } = event.target.closest("button")?.dataset ?? {};
    const each = named("trials");
    if (sort) restart(each, { order: reordered(each.order, sort), offset: 0 });
    else if (offset) restart(each, { offset: Number(offset) });
  });
  part("parallel").addEventListener("click", (event) => {
    const { trial } = event.target.closest("path")?.dataset ?? {};
    if (trial) location.hash = `#/runs/${encodeURIComponent(name)}/trials/${encodeURIComponent(trial)}`;
  });
  selectRanges(part("parallel"), (ranges) => {
    context.ranges = ranges;
    draw(named("parallel"));
    restart(named("trials"), { offset: 0 });
  });
  map.addEventListener("click", (event) => {
    hosts.value = nodeAt(map, event, nodes)?.host ?? hosts.value;
    drawMap();
  });
  hosts.addEventListener("change", drawMap);
  coloring.addEventListener("change", () => draw(named("machines")));
  part("tree").addEventListener("keydown", walk);
  obey(part("changes"), part("outcome"), frame);
  addEventListener("resize", redraw);

  return {
    open() {
      if (over !== null) return;
      over = new AbortController();
      begin(over.signal);
      timer = setInterval(refreshAll, INTERVAL_MILLISECONDS);
    },
    close() {
      clearInterval(timer);
      over?.abort();
      silence?.();
      over = silence = null;
    },
    /** Select a trial, or none, and move the focus to its details or to its place in the tree. */
    select(trial, place) {
      const before = context.trial;
      context.trial = trial;
      if (trial !== before) {
        panel.hidden = trial === null;
        restart(named("trial"), { path: trial === null ? null : ["trials", trial] });
        draw(named("tree"));
        restart(named("tree"), {});
        if (trial !== null) {
          show(panel.querySelector("h2"), `Trial ${trial}`);
          show(part("trial"), h("p", { class: "none" }, "The trial is being read."));
        }
      }
      if (trial === null) main.querySelector(`a[data-trial="${CSS.escape(before)}"]`)?.focus();
      else if (place === "tree") main.querySelector("#tree-title").focus();
      else if (trial !== before || document.activeElement !== panel.querySelector("h2")) panel.querySelector("h2").focus();
    },
    /** Free all resources. */
    end() {
      this.close();
      removeEventListener("resize", redraw);
    },
  };
}

function note(content) {
  return h("p", { class: "note", role: "note" }, content);
}
