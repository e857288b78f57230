/** The nodes of a run: a map, a table, and the telemetry of the selected node. */

import { chart, end } from "./chart.js";
import { color } from "./color.js";
import { bar, h, s, table } from "./dom.js";
import { clock, duration, number, percent, si, size, whole } from "./format.js";

const ROWS = 64;
const CELL = { least: 6, most: 18, area: 500_000 }; // Pixels of a node's square, and of all.
const [CHART, GAP] = [356, 24]; // Least width of a chart, and between charts, as in the style sheet.
const BYTE_STEPS = Array.from({ length: 60 }, (_, power) => 2 ** power);
const COLUMNS = [["Host", "short"], ["Replicas"], ["Processors", "load"], ["Memory", "number"], ["Accelerators", "load"],
  ["Power", "number"], ["Last record", "number"]];

/** Return the nodes of a status: {host, node, replicas, kind, use} with a state and a utilization from 0 to 1. */
export function nodesOf({ replicas, telemetry }) {
  const found = new Map((telemetry?.nodes ?? []).map((node) => [node.host, { host: node.host, node, replicas: [] }]));
  for (const replica of replicas) {
    const host = replica.host ?? replica.node ?? "not placed yet";
    if (!found.has(host)) found.set(host, { host, node: null, replicas: [] });
    found.get(host).replicas.push(replica);
  }
  return [...found.values()].map((each) => ({ ...each, kind: kind(each.replicas), use: utilization(each.node) }));
}

function kind(replicas) {
  const urgent = replicas.find(troubled) ?? replicas[0];
  return urgent === undefined ? "no replica" : urgent.state;
}

function troubled({ state, storage_waiting: waiting }) {
  return waiting !== "" || /^(silent|failed|lost|unknown|requeued)/.test(state);
}

function utilization(node) {
  const value = node?.accelerator_percent ?? node?.cpu_percent ?? null;
  return value === null ? null : value / 100;
}

/** Return a status with states of its replicas that a reader understands. */
export function worded(status) {
  const other = status.remaining_seconds > 0 ? "other work" : "shutting down";
  return { ...status, replicas: status.replicas.map((replica) => (replica.state === "other" ? { ...replica, state: other } : replica)) };
}

/** Return whether replicas have candidates that may still be trained. */
export function queues({ models, state }) {
  return !models && state !== "ended";
}

/** Return the map's legend and the table; null before the first replica. */
export function machines(status, nodes, by) {
  const { replicas, telemetry } = status;
  if (!nodes.length) return null;
  const shown = [...nodes].sort((a, b) => Number(b.replicas.some(troubled)) - Number(a.replicas.some(troubled))).slice(0, ROWS);
  return [
    legend(nodes, by),
    table("Machines", COLUMNS, shown.map((each) => row(each, queues(status))), "machines stack", { keys: shown.map(({ host }) => host) }),
    h("p", { class: "lead", id: "energy" }, states(replicas), summary(telemetry, nodes.length)),
  ];
}

function legend(nodes, by) {
  if (by === "use") {
    const known = nodes.filter(({ use }) => use !== null).length;
    return h("ul", { class: "legend" }, [0, 0.25, 0.5, 0.75, 1].map((value) =>
      h("li", {}, key({ fill: color(value) }), percent(value, 0))), h("li", {}, `${whole(known)} of ${number(nodes.length, "node")} report it`));
  }
  return h("ul", { class: "legend" }, counts(nodes.map((each) => each.kind)).map(([state, count]) =>
    h("li", {}, key({ class: cssClass(state), "data-kind": state }), `${state}: ${whole(count)}`)));
}

function key(attributes) {
  return s("svg", { class: "key", viewBox: "0 0 10 10", "aria-hidden": "true" }, s("rect", { ...attributes, width: 10, height: 10 }));
}

function cssClass(state) {
  return troubled({ state, storage_waiting: "" }) ? "troubled" : `${state.split(" ", 1)[0]} state`;
}

/** Draw the map: a square for each node, with a cross where a replica has a problem. */
export function paintMap(canvas, nodes, by, selected) {
  const width = Math.max(200, Math.floor(canvas.parentNode.clientWidth));
  const cell = Math.max(CELL.least, Math.min(CELL.most, Math.floor(Math.sqrt(CELL.area / Math.max(1, nodes.length)))));
  const across = Math.max(1, Math.floor(width / cell));
  Object.assign(canvas.dataset, { cell, across });
  const scale = devicePixelRatio || 1;
  const height = cell * Math.ceil(nodes.length / across);
  [canvas.width, canvas.height] = [width * scale, height * scale];
  canvas.setAttribute("aria-label", `Map of ${number(nodes.length, "node")}: ${counts(nodes.map((each) => each.kind)).map(([state, count]) => `${count} ${state}`).join(", ")}`);
  const pen = canvas.getContext("2d");
  const style = (name) => getComputedStyle(canvas).getPropertyValue(name);
  const fills = new Map([...canvas.closest("section").querySelectorAll("[data-kind]")].map((each) => [each.dataset.kind, getComputedStyle(each).fill]));
  pen.scale(scale, scale);
  nodes.forEach((each, place) => {
    const [x, y] = [cell * (place % across), cell * Math.floor(place / across)];
    pen.fillStyle = by === "use" ? (each.use === null ? style("--line") : color(each.use)) : fills.get(each.kind) ?? style("--muted");
    pen.fillRect(x + 0.5, y + 0.5, cell - 1, cell - 1);
    if (each.replicas.some(troubled)) line(pen, style("--ink"), [[x + 1, y + 1, x + cell - 1, y + cell - 1], [x + cell - 1, y + 1, x + 1, y + cell - 1]]);
    if (each.host === selected) {
      pen.strokeStyle = style("--ink");
      pen.lineWidth = 2;
      pen.strokeRect(x + 1, y + 1, cell - 2, cell - 2);
    }
  });
}

function line(pen, stroke, parts) {
  [pen.strokeStyle, pen.lineWidth] = [stroke, 1];
  pen.beginPath();
  for (const [x, y, toX, toY] of parts) {
    pen.moveTo(x, y);
    pen.lineTo(toX, toY);
  }
  pen.stroke();
}

/** Return the node at a click on the map; undefined outside the nodes. */
export function nodeAt(canvas, event, nodes) {
  const box = canvas.getBoundingClientRect();
  const { cell, across } = canvas.dataset;
  const column = Math.floor((event.clientX - box.left) / cell);
  return column < across ? nodes[column + across * Math.floor((event.clientY - box.top) / cell)] : undefined;
}

/** Return the selected node in a sentence. */
export function nodeText({ host, node, replicas }, searches) {
  const facts = [replicas.map((replica) => worked(replica, searches)).join("; "),
    node?.cpu_percent == null ? null : `processors ${whole(node.cpu_percent)}%`,
    node?.accelerator_percent == null ? null : `${node.accelerator_count} accelerators ${whole(node.accelerator_percent)}%`,
    node?.memory_bytes == null ? null : `memory ${size(node.memory_bytes)}`, node?.watts == null ? null : `power ${si(node.watts, "W")}`];
  return `${host}: ${facts.filter(Boolean).join(", ") || "no replica"}`;
}

function worked({ id, state, trials, queue_length: length }, searches) {
  return `${id} ${state}, ${number(trials, "trial")}${searches ? `, ${whole(length)} queued` : ""}`;
}

function counts(names) {
  const found = new Map();
  for (const name of names) found.set(name, (found.get(name) ?? 0) + 1);
  return [...found].sort((a, b) => b[1] - a[1]);
}

function states(replicas) {
  const found = counts(replicas.map(({ state }) => state)).map(([state, count]) => `${whole(count)} ${state}`);
  return `${number(replicas.length, "replica")}: ${found.join(", ")}. `;
}

function row({ host, node, replicas }, searches) {
  const known = (name) => replicas.map((replica) => replica[name]).filter((value) => value !== null);
  const [percentages, bytes, quiet] = [known("cpu_percent"), known("memory_bytes"), known("last_record_seconds")];
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
    total > ROWS ? `The table shows ${ROWS} of ${whole(total)} hosts, those with problems first. ` : null,
    telemetry?.unavailable_reason ? `No telemetry: ${telemetry.unavailable_reason}. The replicas' reports of their own processes are shown. ` : null,
    energy && energy.joules !== null ? `Energy so far ${si(energy.joules, "J")}, ${energy.label}. ` : null,
    telemetry && telemetry.overhead !== null ? `Sampling uses at most ${percent(telemetry.overhead, 3)} of a core.` : null,
  ];
}

/** Return the curves of a node and its devices; null without telemetry. */
export function telemetry({ series, now }, context, width) {
  const [found] = series;
  if (!found?.points.length) return null;
  const { points, accelerators, host } = found;
  const columns = Math.max(1, Math.floor((width + GAP) / (CHART + GAP)));
  const chartWidth = Math.floor((width - GAP * (columns - 1)) / columns);
  const last = points.at(-1).to_seconds;
  const each = (values) => accelerators.map((name, place) => ({ label: name, points: points.map((point) => [point.to_seconds, point[values]?.[place] ?? null]) }));
  const one = (label, name) => ({ label, points: points.map((point) => [point.to_seconds, point[name]]) });
  const drawn = [
    ["Utilization", [one("processors", "cpu_percent"), ...each("utilization_percent")], (value) => `${whole(value)}%`, 100],
    ["Power", [one("node", "power_watts"), ...each("watts")], (value) => si(value, "W"), null],
    ["Memory", [one("node", "memory_bytes"), one("accelerators", "accelerator_memory_bytes")], size, null, BYTE_STEPS],
    ["Temperature", [one("hottest accelerator", "celsius")], (value) => `${whole(value)} °C`, null],
  ].map(([title, lines, ...rest]) => [title, lines.filter((line_) => line_.points.some(([, value]) => value !== null)), ...rest]).filter(([, lines]) => lines.length);
  const devices = now.nodes[0]?.accelerators ?? [];
  return [
    h("div", { class: "charts" }, drawn.map(([title, lines, text, most, steps]) => h("div", {}, h("h3", {}, title), chart({
      id: title, label: `${title} of ${host} until ${clock(last)}`, series: lines, width: chartWidth, height: 170,
      x: { end: Math.max(1, last), text: clock, steps: [10, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400] },
      y: { end: most ?? end(lines.flatMap((line_) => line_.points.map(([, value]) => value))), text, steps } })))),
    devices.length ? table(`Accelerators of ${host}`, [["Accelerator", "short"], ["Utilization", "number"], ["Memory", "number"], ["Power", "number"], ["Temperature", "number"], ["Clock", "number"]],
      devices.map((device) => [device.name, device.utilization_percent === null ? "–" : `${whole(device.utilization_percent)}%`, size(device.memory_bytes), si(device.watts, "W"),
        device.celsius === null ? "–" : `${whole(device.celsius)} °C`, si(device.mhz === null ? null : device.mhz * 1e6, "Hz")]), "stack") : null,
    h("p", { class: "lead" }, `Last sample after ${duration(last)}.`),
  ];
}
