// Replays a run to its live page. Answers are those that the service gave first, extended to a number
// of nodes and trials, with other quantities each time, so that the page draws its parts again.
// `update` advances the page's clock and sends a status without nodes and an event. Answers with all
// nodes are prepared, because making them costs more than showing them.
const clock = performance.now.bind(performance);
const request = window.fetch;
const known = new Map();
const growing = new Set(["bytes", "elapsed_seconds", "operations", "parameters", "seconds"]);
let passed = 0;
let answers = 0;
let stream = null;
let sent = 0;
let statuses = [];

performance.now = () => clock() + passed;
window.fetch = async (path, options) => {
  if (path.includes("/events/stream")) return new Response(new ReadableStream({ start(controller) { stream = controller; } }));
  if (path.endsWith("/status") && statuses.length) return new Response(statuses[answers++ % statuses.length]);
  if (!known.has(path)) known.set(path, await (await request(path, options)).text());
  answers += 1;
  const answer = JSON.parse(known.get(path), (key, value) => (growing.has(key) && typeof value === "number" ? value + answers : value));
  return new Response(JSON.stringify(extended(answer, Number(/limit=(\d+)/.exec(path)?.[1] ?? 0))));
};

function many(items, count, change) {
  return items.length ? Array.from({ length: count }, (_, place) => change(structuredClone(items[place % items.length]), place)) : [];
}

function extended(answer, limit) {
  for (const key of ["trials", "nodes"]) {
    if (!TRIALS || !Array.isArray(answer[key])) continue;
    answer[key] = many(answer[key], Math.min(limit, TRIALS), (item, place) => {
      (item.trial ?? item).id = `t${place}`;
      return item;
    });
    answer.total = TRIALS;
  }
  return answer;
}

window.prepare = async (path, count) => {
  const status = JSON.parse(await (await request(path)).text());
  if (NODES) {
    status.replicas = many(status.replicas, NODES, (replica, place) => Object.assign(replica, { id: `r${place}`, host: `n${place}`, state: "train" }));
    status.telemetry.nodes = many(status.telemetry.nodes, NODES, (node, place) => Object.assign(node, { host: `n${place}` }));
  }
  const encoder = new TextEncoder();
  const { replicas, telemetry } = status;
  statuses = Array.from({ length: Math.min(count, 20) }, (_, number) => {
    replicas.forEach((replica, place) => { replica.cpu_percent = (place + number) % 100; });
    (telemetry?.nodes ?? []).forEach((node, place) => { node.cpu_percent = (place + number) % 100; });
    return encoder.encode(JSON.stringify(status));
  });
  Object.assign(status, { replicas: [], telemetry: telemetry && { ...telemetry, nodes: [] } });
  window.messages = Array.from({ length: count }, (_, number) => {
    status.elapsed_seconds += 1;
    status.score.operations += 1e9;
    const event = { number: 1e6 + number, utc: null, elapsed_seconds: number, kind: "trial", component: "r0", text: `event ${number}` };
    return encoder.encode(`event: status\ndata: ${JSON.stringify(status)}\n\nid: ${event.number}\nevent: happened\ndata: ${JSON.stringify(event)}\n\n`);
  });
};

window.update = (milliseconds = 0) => {
  passed += milliseconds;
  stream.enqueue(window.messages[sent++ % window.messages.length]);
};

window.updates = async (count, milliseconds) => {
  for (let number = 0; number < count; number += 1) {
    window.update(milliseconds);
    for (let turn = 0; turn < 3; turn += 1) await new Promise((done) => { setTimeout(done); });
  }
};
