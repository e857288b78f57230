/** One run: what the service's events say at once, and what is asked for when they come. */

import { Refused, listen, ofRun, text } from "./api.js";
import { h, show } from "./dom.js";
import { alerts, events, headline, inFlight, subtitle } from "./parts.js";

const EVENTS = 100;
/** What is asked for while the run changes, and after how many seconds again. */
const PARTS = [
  { part: "in-flight", path: ["in-flight"], query: "?limit=64", seconds: 0.9, draw: inFlight },
];

/** Return the view of a run. */
export function runView(main, frame, name) {
  main.replaceChildren(document.getElementById("run-view").content.cloneNode(true));
  frame.title(name);
  const part = (which) => main.querySelector(`[data-part=${which}]`);
  const parts = PARTS.map((each) => ({ ...each, asked: -Infinity, under_way: false, text: null }));
  const context = { run: name, status: null };
  let latest = [];
  let last = null;
  let over = null;
  let silence = null;

  function hear(event, data) {
    frame.connection();
    if (event === "status") {
      context.status = data;
      frame.title(name, subtitle(data));
      show(part("alerts"), alerts(data));
      show(part("headline"), headline(data));
      parts.forEach(refresh);
    } else if (event === "happened") {
      keep([data]);
    } else {
      show(part("alerts"), note(event === "loading" ? "The run's records are being read." : data.detail));
    }
  }

  function keep(added) {
    latest = [...latest, ...added].slice(-EVENTS);
    last = latest.at(-1)?.number ?? last;
    show(part("events"), events(latest, context));
  }

  function lost(error) {
    if (error instanceof Refused && error.status === 404) show(part("alerts"), note(error.message));
    frame.connection(error.message);
  }

  async function refresh(each) {
    const { signal } = over;
    if (each.under_way || performance.now() - each.asked < each.seconds * 1000) return;
    each.under_way = true;
    each.asked = performance.now();
    try {
      const said = await text(ofRun(name, ...each.path) + each.query, signal);
      if (said !== null && said !== each.text && !signal.aborted) {
        each.text = said;
        show(part(each.part), each.draw(JSON.parse(said), context));
      }
    } catch (error) {
      if (!signal.aborted) show(part(each.part), h("p", { class: "none" }, error.message));
    } finally {
      each.under_way = false;
    }
  }

  /** Read the latest events, then hear what comes behind them. */
  async function begin(signal) {
    try {
      const said = last === null ? await text(`${ofRun(name, "events")}?limit=${EVENTS}`, signal) : null;
      if (signal.aborted) return;
      if (said !== null) {
        const answer = JSON.parse(said);
        keep(answer.events);
        last ??= answer.last;
      }
      silence = listen(`${ofRun(name, "events", "stream")}?seconds=0.9`, last, { hear, lost });
    } catch (error) {
      if (signal.aborted) return;
      lost(error);
      setTimeout(() => signal.aborted || begin(signal), 1000);
    }
  }

  return {
    name,
    open() {
      if (over !== null) return;
      over = new AbortController();
      begin(over.signal);
    },
    close() {
      over?.abort();
      silence?.();
      over = silence = null;
    },
  };
}

function note(words) {
  return h("p", { class: "note", role: "note" }, words);
}
