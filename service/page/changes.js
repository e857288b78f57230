/** Changes by the reader: cancel, stop, resume. The service requires a token for each. */

import { Refused, change, ofRun, text } from "./api.js";
import { h, show, state, table } from "./dom.js";
import { moment, number } from "./format.js";

/** Changes that the page offers in a run's states. The service decides whether they are possible. */
const ACTIONS = [
  { action: "stop", states: ["queued", "running", "silent"], title: "Stop this run", button: "Stop it now",
    effect: "The current steps complete, and the run is scored. It cannot be resumed." },
  { action: "resume", states: ["gone", "silent"], title: "Resume this run", button: "Resume it now",
    effect: "If its primary has exited, the run resumes; the downtime is charged." },
];
const COLUMNS = [["Submission", "names"], ["State"], ["Preset"], ["Nodes", "number"], ["Hours", "number"],
  ["Submitted", "short"], ["Run"], ["Reason", "names"], ["Change"]];

/** Return the changes that the service offers to clients with a token. */
export async function possible(signal) {
  return JSON.parse(await text("", signal)).changes;
}

/** Return the table of submissions. */
export function queue({ queue: entries }) {
  return entries.length ? table("Queue", COLUMNS, entries.map(row), "queue stack", { keys: entries.map(({ id }) => id) })
    : h("p", { class: "none" }, "There are no submissions.");
}

function row({ id, state: now, submission, submitted_utc: utc, run, reason }) {
  return [
    id, state(now), submission.preset, submission.nodes, submission.hours, moment(utc),
    run === null ? "–" : h("a", { href: `#/runs/${encodeURIComponent(run)}` }, run), reason || "–",
    now === "queued" ? h("button", { type: "button", "data-path": `queue/${id}/cancel` }, `Cancel ${id}`) : "–",
  ];
}

/** Return the changes that are possible in a run's state. */
export function runChanges(name, state, allowed) {
  return ACTIONS.filter((each) => allowed.includes(each.action) && each.states.includes(state)).map(
    ({ action, title, effect, button }) => h("details", { class: "change" }, h("summary", {}, title),
      h("p", {}, effect), h("button", { type: "button", "data-path": ofRun(name, action) }, button)),
  );
}

/** Send the changes of the buttons inside an element, and show the outcome. */
export function obey(element, outcome, frame) {
  element.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-path]");
    if (button !== null) send(button.dataset.path, undefined, outcome, frame, () => "Requested.");
  });
}

/** Send a change and show its outcome; return the error if it was refused. */
export async function send(path, body, outcome, frame, describe) {
  show(outcome, "Sending the request.");
  try {
    const answer = await change(path, body);
    frame.wanted(false);
    show(outcome, describe(answer));
    return null;
  } catch (error) {
    frame.wanted(error instanceof Refused && error.status === 401);
    show(outcome, error.message);
    return error;
  }
}

/** Return the number of waiting submissions as text. */
export function waiting({ queue: entries }) {
  return `${number(entries.filter(({ state }) => state === "queued").length, "submission")} waiting`;
}
