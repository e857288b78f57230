/** The page: which view its address names, and what they share. */

import { Refused, useToken } from "./api.js";
import { show } from "./dom.js";
import { listView } from "./list.js";
import { runView } from "./run.js";

const main = document.getElementById("main");
const connection = document.getElementById("connection");
const live = document.getElementById("live");
const token = document.getElementById("token");
let view = null;
let unread = false; // Whether nothing can be read without a token.
let unchanged = false; // Whether a change was refused for want of one.

/** What a view may change outside itself. */
const frame = {
  title(text, subtitle = "") {
    document.title = `${text} – AIPerf-HPC`;
    show(document.getElementById("title"), text);
    show(document.getElementById("subtitle"), subtitle);
  },
  /** Ask for a token, because a change was refused for want of one; or no longer. */
  wanted(is) {
    unchanged = is;
    askForToken();
  },
  /** Say that the service cannot be heard, and why; or, without an error, that it can. */
  connection(error = null) {
    const refused = error instanceof Refused;
    unread = refused && error.status === 401;
    askForToken();
    connection.hidden = error === null;
    live.className = error === null ? "live" : "lost";
    show(live, error === null ? "live" : "not live");
    if (error !== null) show(connection, refused ? error.message : `Connection lost, trying again: ${error.message}`);
  },
};

function askForToken() {
  token.hidden = !(unread || unchanged);
  show(token.querySelector("label"), unread ? "Reading from this service requires a token." : "Changes need a token; enter it and try again.");
}

/** Return the parts of the address behind `#/`. */
function place() {
  return location.hash.slice(2).split("/").filter(Boolean).map(decoded);
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function route() {
  if (location.hash && !location.hash.startsWith("#/")) return;
  const [kind, run, , trial] = place();
  const name = kind === "runs" && run ? run : null;
  if (view === null || view.name !== name) {
    view?.end();
    view = name === null ? listView(main, frame) : runView(main, frame, name);
    if (!document.hidden) view.open();
  }
  view.select?.(trial ?? null);
}

// A tab that nobody sees holds no connection: browsers allow six to a service in all tabs.
document.addEventListener("visibilitychange", () => (document.hidden ? view.close() : view.open()));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
token.addEventListener("submit", (event) => {
  event.preventDefault();
  useToken(token.elements["token-text"].value);
  frame.wanted(false);
});
addEventListener("hashchange", route);
route();
