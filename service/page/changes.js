/** What the page changes: submit, cancel, stop, resume. The service asks each time for a token. */

import { Refused, change, ofRun, text } from "./api.js";
import { h, show, table } from "./dom.js";
import { moment, number } from "./words.js";

/** In which states of a run what can be asked for. The service decides whether it can be done. */
const ACTIONS = [
  { what: "stop", states: ["queued", "running", "silent"], title: "Stop this run", button: "Stop it now",
    words: "The current steps end and the run is scored; it cannot be resumed." },
  { what: "resume", states: ["gone", "silent"], title: "Resume this run", button: "Resume it now",
    words: "If its primary has died, the run resumes; the time in between counts." },
];
const COLUMNS = [["Submission", "names"], ["State"], ["Preset"], ["Nodes", "number"], ["Hours", "number"],
  ["Handed in", "short"], ["Run"], ["Why", "names"], ["Change"]];

/** Return what the service lets who has a token change; nothing where it only reads. */
export async function possible(signal) {
  return JSON.parse(await text("", signal)).changes;
}

/** Return what was submitted, or why that is not to be seen. */
export function queue({ queue: entries }) {
  return entries.length ? table("Queue", COLUMNS, entries.map(row), "queue stack")
    : h("p", { class: "none" }, "Nothing was submitted.");
}

function row({ id, state, submission, submitted_utc: utc, run, reason }) {
  return [
    id, h("span", { class: `chip ${state}` }, state), submission.preset, submission.nodes, submission.hours, moment(utc),
    run === null ? "–" : h("a", { href: `#/runs/${encodeURIComponent(run)}` }, run), reason || "–",
    state === "queued" ? h("button", { type: "button", "data-path": `queue/${id}/cancel` }, `Cancel ${id}`) : "–",
  ];
}

/** Return what can be done with a run in its state. */
export function runChanges(name, state, allowed) {
  return ACTIONS.filter(({ what, states }) => allowed.includes(what) && states.includes(state)).map(
    ({ what, title, words, button }) => h("details", { class: "change" }, h("summary", {}, title),
      h("p", {}, words), h("button", { type: "button", "data-path": ofRun(name, what) }, button)),
  );
}

/**
 * Do what the buttons inside an element say, and say what came of it.
 *
 * One listener for all of them, because buttons are kept in place when what they mean changes.
 */
export function obey(element, said, frame) {
  element.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-path]");
    if (button !== null) send(button.dataset.path, undefined, said, frame, () => "It will be done.");
  });
}

/** Let a form submit a run. */
export function submitting(form, said, frame) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    let settings;
    try {
      settings = JSON.parse(form.elements.settings.value.trim() || "{}");
    } catch (error) {
      show(said, `The settings are not valid JSON: ${error.message}`);
      return;
    }
    const name = form.elements.name.value.trim();
    const submission = {
      preset: form.elements.preset.value.trim(),
      nodes: Number(form.elements.nodes.value),
      hours: Number(form.elements.hours.value),
      name: name === "" ? null : name,
      settings,
    };
    send("runs", submission, said, frame, ({ id }) => `Submission ${id} is in the queue.`);
  });
}

async function send(path, body, said, frame, words) {
  show(said, "Asking the service.");
  try {
    const answer = await change(path, body);
    frame.wanted(false);
    show(said, words(answer));
  } catch (error) {
    frame.wanted(error instanceof Refused && error.status === 401);
    show(said, error.message);
  }
}

/** Return how many submissions wait, in words. */
export function waiting({ queue: entries }) {
  return `${number(entries.filter(({ state }) => state === "queued").length, "submission")} waiting`;
}
