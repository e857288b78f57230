/** The nodes of a run: what its replicas do there, and what telemetry says of their load. */

import { bar, h, table } from "./dom.js";
import { number, percent, si, size, whole } from "./words.js";

const MOST = 64;
const COLUMNS = [["Host", "short"], ["Replicas"], ["Processors", "load"], ["Memory", "number"], ["Accelerators", "load"],
  ["Power", "number"], ["Last record", "number"]];

/** Return a row for each node: those that telemetry tells, and those that replicas run on. */
export function machines({ replicas, telemetry, models }) {
  const nodes = new Map((telemetry?.nodes ?? []).map((node) => [node.host, { node, replicas: [] }]));
  for (const replica of replicas) {
    const host = replica.host ?? replica.node ?? "not placed yet";
    if (!nodes.has(host)) nodes.set(host, { node: null, replicas: [] });
    nodes.get(host).replicas.push(replica);
  }
  if (!nodes.size) return h("p", { class: "none" }, "No replica has been launched yet.");
  const urgency = ([, each]) => (each.replicas.some(troubled) ? 0 : 1);
  const shown = [...nodes].sort((a, b) => urgency(a) - urgency(b)).slice(0, MOST);
  return [
    table("Machines", COLUMNS, shown.map(([host, each]) => row(host, each, !models)), "machines stack"),
    h("p", { class: "lead", id: "energy" }, states(replicas), summary(telemetry, nodes.size)),
  ];
}

function worked({ id, state, trials, queue_length: length }, searches) {
  return `${id} ${state}, ${number(trials, "trial")}${searches ? `, ${whole(length)} queued` : ""}`;
}

function troubled({ state, storage_waiting: waiting }) {
  return waiting !== "" || /^(silent|failed|lost|unknown|requeued)/.test(state);
}

/** Return how many replicas are in each state, the most first. */
function states(replicas) {
  const counts = new Map();
  for (const { state } of replicas) counts.set(state, (counts.get(state) ?? 0) + 1);
  const said = [...counts].sort((a, b) => b[1] - a[1]).map(([state, count]) => `${whole(count)} ${state}`);
  return `${number(replicas.length, "replica")}: ${said.join(", ")}. `;
}

function row(host, { node, replicas }, searches) {
  const percentages = replicas.map((replica) => replica.cpu_percent).filter((value) => value !== null);
  const bytes = replicas.map((replica) => replica.memory_bytes).filter((value) => value !== null);
  const quiet = replicas.map((replica) => replica.last_record_seconds).filter((value) => value !== null);
  return [
    host,
    h("span", {}, replicas.map((replica) => worked(replica, searches)).join("; ") || "–"),
    node === null || node.cpu_percent === null
      ? h("span", {}, percentages.length ? `${whole(sum(percentages))}% of a core` : "–")
      : load(node.cpu_percent, `Processors of ${host}`),
    h("span", {}, node === null || node.memory_bytes === null ? (bytes.length ? size(sum(bytes)) : "–") : size(node.memory_bytes)),
    node === null || !node.accelerator_count
      ? h("span", {}, node === null ? "–" : "none")
      : load(node.accelerator_percent, `Accelerators of ${host}`, `${node.accelerator_count} × `),
    h("span", {}, node === null || node.watts === null ? "–" : si(node.watts, "W")),
    h("span", {}, quiet.length ? `${Math.max(0, Math.round(Math.min(...quiet)))} s ago` : "–"),
  ];
}

function load(value, label, before = "") {
  if (value === null) return h("span", {}, `${before}not reported`);
  return [bar(value / 100, label), h("span", {}, `${before}${whole(value)}%`)];
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

function summary(telemetry, total) {
  const energy = telemetry?.energy;
  return [
    total > MOST ? `${MOST} of ${whole(total)} hosts are shown, those with problems first. ` : null,
    telemetry?.unavailable_reason ? `No telemetry: ${telemetry.unavailable_reason}. The replicas' reports of their own processes are shown. ` : null,
    energy && energy.joules !== null ? `Energy so far ${si(energy.joules, "J")}, ${energy.label}. ` : null,
    telemetry && telemetry.overhead !== null ? `Sampling takes ${percent(telemetry.overhead, 3)} of a core at most.` : null,
  ];
}
