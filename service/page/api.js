/** What the service says: JSON, and server-sent events that are asked for again when they end. */

const API = "api/v1"; // Relative: the service may be behind a proxy's path.
const AGAIN_MILLISECONDS = 1000;
const SILENT_MILLISECONDS = 40_000; // The service says every 15 seconds that it is there.

let token = sessionStorage.getItem("token"); // Kept until the tab is closed.

/** Show a token with all that is asked for from now on. */
export function useToken(words) {
  token = words.trim();
  sessionStorage.setItem("token", token);
}

/** Return whether a token is shown: then a link, which shows none, would be refused. */
export function hasToken() {
  return token !== null;
}

function shown() {
  return token === null ? {} : { Authorization: `Bearer ${token}` };
}

/** A refusal, with what the service says of it. */
export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** Return the address of something below a run. */
export function ofRun(run, ...rest) {
  return ["runs", run, ...rest].map(encodeURIComponent).join("/");
}

/** Return an answer's text; null while the service reads the run. Throws Refused or TypeError. */
export async function text(path, signal) {
  const response = await fetch(path === "" ? API : `${API}/${path}`, { headers: shown(), signal });
  if (!response.ok) throw await refusal(response);
  const body = await response.text();
  return response.status === 202 ? null : body;
}

/** Return the headline figures that the page shows: their titles, units and formats. */
export async function headlineQuantities(signal) {
  const { quantities } = JSON.parse(await text("quantities", signal));
  return quantities.filter(({ page }) => page !== null);
}

/** Ask for a change; return the answer. Throws Refused or TypeError. */
export async function change(path, body) {
  const headers = { ...shown(), "Content-Type": "application/json" };
  const response = await fetch(`${API}/${path}`, { method: "POST", headers, body: JSON.stringify(body) });
  if (!response.ok) throw await refusal(response);
  return response.json();
}

async function refusal(response) {
  const body = await response.text();
  try {
    return new Refused(response.status, JSON.parse(body).detail ?? body);
  } catch {
    return new Refused(response.status, `${response.status} ${response.statusText}`);
  }
}

/**
 * Hear a stream of events until the returned function is called. When it ends, or says nothing for
 * long, it is asked for again from the last event that came.
 *
 * It is not EventSource: that cannot say why it was refused, and never notices a silent end.
 */
export function listen(path, after, { hear, lost }) {
  const over = new AbortController();
  keepListening(path, after, hear, lost, over.signal);
  return () => over.abort();
}

async function keepListening(path, after, hear, lost, over) {
  let last = after;
  while (!over.aborted) {
    const once = new AbortController();
    const stop = () => once.abort();
    over.addEventListener("abort", stop);
    try {
      for await (const message of messages(path, last, once)) {
        if (over.aborted) break;
        if (message.id) last = message.id;
        hear(message.event, JSON.parse(message.data));
      }
      if (!over.aborted) lost(new TypeError("the service has closed the connection"));
    } catch (error) {
      if (!over.aborted) lost(error);
    }
    over.removeEventListener("abort", stop);
    once.abort();
    if (!over.aborted) await rest(AGAIN_MILLISECONDS);
  }
}

function rest(milliseconds) {
  return new Promise((resolve) => { setTimeout(resolve, milliseconds); });
}

async function* messages(path, last, once) {
  let watchdog = setTimeout(() => once.abort(), SILENT_MILLISECONDS);
  try {
    const headers = last === null ? shown() : { ...shown(), "Last-Event-ID": String(last) };
    const response = await fetch(`${API}/${path}`, { headers, signal: once.signal, cache: "no-store" });
    if (!response.ok) throw await refusal(response);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let waiting = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(watchdog);
      watchdog = setTimeout(() => once.abort(), SILENT_MILLISECONDS);
      const whole = (waiting + value).split("\n\n");
      waiting = whole.pop();
      for (const each of whole) {
        const message = parsed(each);
        if (message.data) yield message;
      }
    }
  } finally {
    clearTimeout(watchdog);
  }
}

function parsed(lines) {
  const message = {};
  for (const line of lines.split("\n")) {
    const colon = line.indexOf(": ");
    if (colon > 0) message[line.slice(0, colon)] = line.slice(colon + 2);
  }
  return message;
}
