/** One run: what the service's events say at once, and what is asked for when they come. */

import { Refused, headlineQuantities, listen, ofRun, text } from "./api.js";
import { obey, possible, runChanges } from "./changes.js";
import { h, show } from "./dom.js";
import { machines } from "./machines.js";
import { alerts, events, files, headline, inFlight, score, subtitle } from "./parts.js";
import { timeSplit } from "./time.js";
import { tree, walk } from "./tree.js";
import { trialDetail } from "./trial.js";

const EVENTS = 100;
const LOADING = "The run's records are being read.";
const AGAIN_MILLISECONDS = 500;
const ANYWAY_MILLISECONDS = 5000; // A run that has ended says nothing more, but may get its report.
/** What is asked for when the run has changed, no sooner than after some seconds. */
const PARTS = [
  { part: "in-flight", path: ["in-flight"], query: "?limit=64", seconds: 0.4, draw: inFlight },
  { part: "score", path: ["score"], query: "", seconds: 4, draw: score },
  { part: "time", path: ["time"], query: "", seconds: 4, draw: timeSplit },
  { part: "tree", path: ["tree"], query: "?limit=200", seconds: 2, draw: tree },
  { part: "files", path: ["files"], query: "", seconds: 10, draw: files },
];

/** Return the view of a run. */
export function runView(main, frame, name) {
  main.replaceChildren(document.getElementById("run-view").content.cloneNode(true));
  frame.title(name);
  const part = (which) => main.querySelector(`[data-part=${which}]`);
  const panel = main.querySelector("#trial");
  const context = { run: name, status: null, trial: null };
  const parts = PARTS.map((each) => ({ ...each, asked: -Infinity, busy: false, said: null }));
  const chosen = { part: "trial", path: null, query: "", seconds: 2, draw: trialDetail, asked: -Infinity, busy: false, said: null };
  let allowed = [];
  let quantities = [];
  let latest = [];
  let last = null;
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
      show(part("machines"), machines(data));
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
    show(part("events"), events(latest));
  }

  function lost(error) {
    if (error instanceof Refused && error.status === 404) show(part("alerts"), note(error.message));
    frame.connection(error);
  }

  function refreshAll() {
    parts.forEach(refresh);
    if (chosen.path !== null) refresh(chosen);
  }

  async function refresh(each) {
    if (over === null || context.status === null || each.busy || performance.now() - each.asked < each.seconds * 1000) return;
    const { signal } = over;
    const path = each.path;
    each.busy = true;
    each.asked = performance.now();
    try {
      const said = await text(ofRun(name, ...path) + each.query, signal);
      if (said === null) {
        each.asked = -Infinity;
        later(() => refresh(each), AGAIN_MILLISECONDS, signal);
      } else if (said !== each.said && !signal.aborted && path === each.path) {
        each.said = said;
        draw(each);
      }
    } catch (error) {
      if (!signal.aborted && path === each.path) show(part(each.part), h("p", { class: "none" }, error.message));
    } finally {
      each.busy = false;
      if (path !== each.path) refresh(each);
    }
  }

  function draw(each) {
    if (each.said === null || each.path === null) return;
    const place = part(each.part);
    show(place, each.draw(JSON.parse(each.said), context, Math.max(260, Math.floor(place.clientWidth))));
  }

  /** Read the latest events, then hear what comes behind them. */
  async function begin(signal) {
    try {
      const said = last === null ? await text(`${ofRun(name, "events")}?limit=${EVENTS}`, signal) : null;
      if (signal.aborted) return;
      if (said === null && last === null) {
        show(part("alerts"), note(LOADING));
        later(() => begin(signal), AGAIN_MILLISECONDS, signal);
        return;
      }
      allowed = await possible(signal);
      quantities = await headlineQuantities(signal);
      if (said !== null) {
        const answer = JSON.parse(said);
        keep(answer.events);
        last ??= answer.last;
      }
      silence = listen(`${ofRun(name, "events", "stream")}?seconds=0.5`, last, { hear, lost });
    } catch (error) {
      if (signal.aborted) return;
      lost(error);
      later(() => begin(signal), 2 * AGAIN_MILLISECONDS, signal);
    }
  }

  function later(work, milliseconds, signal) {
    setTimeout(() => signal.aborted || work(), milliseconds);
  }

  function redraw() {
    [...parts, chosen].forEach(draw);
  }

  part("tree").addEventListener("keydown", walk);
  obey(part("changes"), part("said"), frame);
  addEventListener("resize", redraw);

  return {
    name,
    open() {
      if (over !== null) return;
      over = new AbortController();
      begin(over.signal);
      timer = setInterval(refreshAll, ANYWAY_MILLISECONDS);
    },
    close() {
      clearInterval(timer);
      over?.abort();
      silence?.();
      over = silence = null;
    },
    /** Show a trial, or none. */
    select(trial) {
      if (trial === context.trial) return;
      const before = context.trial;
      context.trial = trial;
      Object.assign(chosen, { path: trial === null ? null : ["trials", trial], asked: -Infinity, said: null });
      panel.hidden = trial === null;
      draw(parts.find((each) => each.part === "tree"));
      if (trial === null) {
        main.querySelector(`a[data-trial="${CSS.escape(before)}"]`)?.focus();
        return;
      }
      show(panel.querySelector("h2"), `Trial ${trial}`);
      show(part("trial"), h("p", { class: "none" }, "It is being read."));
      panel.querySelector("h2").focus();
      refresh(chosen);
    },
    /** Leave nothing behind. */
    end() {
      this.close();
      removeEventListener("resize", redraw);
    },
  };
}

function note(words) {
  return h("p", { class: "note", role: "note" }, words);
}
