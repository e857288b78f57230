/** Client of the service: JSON, and server-sent events with reconnection. */

const API = "api/v1"; // Relative: the service may be behind a proxy's path.
const AGAIN_MILLISECONDS = 1000;
const SILENT_MILLISECONDS = 40_000; // The service sends a comment every 15 seconds.

let token = sessionStorage.getItem("token"); // Stored until the tab is closed.

/** Send a token with all further requests. */
export function useToken(given) {
  token = given.trim();
  sessionStorage.setItem("token", token);
}

/** Return whether there is a token: links do not send it and would be refused. */
export function hasToken() {
  return token !== null;
}

function authorization() {
  return token === null ? {} : { Authorization: `Bearer ${token}` };
}

/** A refusal with the service's problem: its detail, and its errors by field. */
export class Refused extends Error {
  constructor(status, detail, errors = []) {
    super(detail);
    this.status = status;
    this.errors = errors;
  }
}

/** Return the path of a resource of a run. */
export function ofRun(run, ...rest) {
  return ["runs", run, ...rest].map(encodeURIComponent).join("/");
}

/** Return the text of an answer; null while the service reads the run. Throws Refused or TypeError. */
export async function text(path, signal) {
  const response = await fetch(path === "" ? API : `${API}/${path}`, { headers: authorization(), signal });
  if (!response.ok) throw await refusal(response);
  const body = await response.text();
  return response.status === 202 ? null : body;
}

/** Return the headline figures that the page shows: their titles, units and formats. */
export async function headlineQuantities(signal) {
  const { quantities } = JSON.parse(await text("quantities", signal));
  return quantities.filter(({ page }) => page !== null);
}

/** Request a change; return the answer. Throws Refused or TypeError. */
export async function change(path, body) {
  const headers = { ...authorization(), "Content-Type": "application/json" };
  const response = await fetch(`${API}/${path}`, { method: "POST", headers, body: JSON.stringify(body) });
  if (!response.ok) throw await refusal(response);
  return response.json();
}

async function refusal(response) {
  const body = await response.text();
  try {
    const problem = JSON.parse(body);
    return new Refused(response.status, problem.detail ?? body, problem.errors);
  } catch {
    return new Refused(response.status, `${response.status} ${response.statusText}`);
  }
}

/**
 * Return the functions of a view that call `look` while it is open, at an interval in milliseconds
 * unless `look` returns another one.
 */
export function polling(frame, interval, look) {
  let over = null;
  async function again(signal) {
    let pause = interval;
    try {
      pause = (await look(signal)) ?? interval;
      if (!signal.aborted) frame.connection();
    } catch (error) {
      if (!signal.aborted) frame.connection(error);
    }
    if (!signal.aborted) setTimeout(again, pause, signal);
  }
  return {
    open() {
      if (over !== null) return;
      over = new AbortController();
      again(over.signal);
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

/**
 * Listen to a stream of events until the returned function is called. If it ends or is silent for
 * long, connect again after the last event that came.
 *
 * EventSource reports no reason for a refusal and never notices a silent end.
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
    const headers = last === null ? authorization() : { ...authorization(), "Last-Event-ID": String(last) };
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
