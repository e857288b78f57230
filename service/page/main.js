/** The page: the view that its address names, and what the views share. */

import { Refused, useToken } from "./api.js";
import { forgetCharts, inspect } from "./chart.js";
import { compareView } from "./compare.js";
import { show } from "./dom.js";
import { listView } from "./list.js";
import { runView } from "./run.js";

const main = document.getElementById("main");
const connection = document.getElementById("connection");
const live = document.getElementById("live");
const token = document.getElementById("token");
let view = null;
let shown = null; // The address of the view.
let unread = false; // Whether reading requires a token.
let unchanged = false; // Whether a change was refused because it requires a token.

/** The interface of a view to the rest of the page. */
const frame = {
  title(text, subtitle = "") {
    document.title = `${text} – AIPerf-HPC`;
    show(document.getElementById("title"), text);
    show(document.getElementById("subtitle"), subtitle);
  },
  /** Ask for a token that a change requires; or no longer. */
  wanted(is) {
    unchanged = is;
    askForToken();
  },
  /** Show that the connection is lost, with the error; or, without one, that it works. */
  connection(error = null) {
    const refused = error instanceof Refused;
    unread = refused && error.status === 401;
    askForToken();
    connection.hidden = error === null;
    main.classList.toggle("missing", refused && error.status === 404);
    live.className = error === null ? "live" : "lost";
    show(live, error === null ? "live" : "not live");
    if (error !== null) show(connection, refused ? error.message : `Connection lost, trying again: ${error.message}`);
  },
};

function askForToken() {
  token.hidden = !(unread || unchanged);
  show(token.querySelector("label"), unread ? "Read access to this service requires a token." : "Changes require a token; enter it and try again.");
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

/** Show that the address has no view. */
function missing() {
  const idle = () => {};
  main.replaceChildren();
  frame.title("Not found");
  frame.connection(new Refused(404, `There is no page at ${location.hash}. The addresses are #/, #/runs/RUN and #/compare/RUN/RUN.`));
  return { open: idle, close: idle, end: idle };
}

function route() {
  if (location.hash && !location.hash.startsWith("#/")) return;
  const [kind, ...rest] = place();
  const [address, make] = kind === undefined ? ["", () => listView(main, frame)]
    : kind === "runs" && rest.length ? [`runs/${rest[0]}`, () => runView(main, frame, rest[0])]
      : kind === "compare" && rest.length > 1 ? [`compare/${rest.join("/")}`, () => compareView(main, frame, rest)] : [location.hash, missing];
  if (address !== shown) {
    view?.end();
    forgetCharts();
    main.classList.remove("missing");
    connection.hidden = true;
    [shown, view] = [address, make()];
    if (!document.hidden) view.open();
  }
  view.select?.(rest[2] ?? null, rest[1] ?? null);
}

// A hidden tab holds no connection: browsers allow six to a service in all tabs.
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
for (const type of ["pointermove", "keydown"]) main.addEventListener(type, inspect);
addEventListener("hashchange", route);
route();
