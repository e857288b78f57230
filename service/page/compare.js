/** Several runs side by side: their curves, figures and differences. */

import { Refused, ofRun, polling, text } from "./api.js";
import { h, show, table } from "./dom.js";
import { percent, quantityText } from "./format.js";
import { CURVE, qualities, qualityName, scores } from "./progress.js";

const [INTERVAL_MILLISECONDS, RETRY_MILLISECONDS] = [5000, 500];
const DIFFERENCES = [["configuration", "Configuration"], ["hardware", "Machine"], ["versions", "Versions"]];

/** Return the view that compares runs. */
export function compareView(main, frame, names) {
  main.replaceChildren(document.getElementById("compare-view").content.cloneNode(true));
  frame.title("Comparison", names.map((name) => h("span", {}, h("a", { href: `#/runs/${encodeURIComponent(name)}` }, name))));
  const part = (which) => main.querySelector(`[data-part=${which}]`);
  let latest = null;

  async function look(signal) {
    try {
      const read = async (path) => JSON.parse(await text(path, signal));
      const query = new URLSearchParams(names.map((name) => ["run", name]));
      const found = { comparison: await read(`compare?${query}`), answers: [], quantities: (await read("quantities")).quantities };
      for (const name of names) found.answers.push(await read(ofRun(name, "score") + CURVE));
      if (found.comparison === null || found.answers.includes(null)) return RETRY_MILLISECONDS;
      if (signal.aborted) return null;
      latest = found;
      draw();
    } catch (error) {
      if (signal.aborted || !(error instanceof Refused) || error.status === 401) throw error;
      show(part("verdict"), h("p", { class: "note" }, error.message));
    }
    return null;
  }

  function draw() {
    if (latest === null) return;
    const { comparison, answers, quantities } = latest;
    const [{ metric }] = answers;
    const width = Math.max(260, Math.floor(part("curves").clientWidth));
    const lines = names.map((name, place) => ({ label: name, answer: answers[place], key: "ops" }));
    const quality = qualityName(answers, metric);
    show(part("verdict"), verdict(comparison));
    show(part("curves"), h("h3", {}, "Score"), scores(lines, width, `Score over time of ${names.join(", ")}`),
      h("h3", {}, `Best ${quality}`), qualities(lines, metric, width, `Best ${quality} over time of ${names.join(", ")}`));
    show(part("figures"), figures(comparison, quantities));
    show(part("differences"), DIFFERENCES.map(([key, title]) => differences(title, comparison[key], names)));
  }

  addEventListener("resize", draw);
  return {
    ...polling(frame, INTERVAL_MILLISECONDS, look),
    end() {
      this.close();
      removeEventListener("resize", draw);
    },
  };
}

function verdict({ comparable, reasons, notes }) {
  return [
    h("div", { class: `verdict ${comparable ? "good" : "bad"}` }, h("strong", {}, comparable ? "Comparable" : "Not comparable"),
      reasons.length ? h("ul", {}, reasons.map((reason) => h("li", {}, reason))) : null),
    notes.length ? h("ul", { class: "notes" }, notes.map((note) => h("li", {}, note))) : null,
  ];
}

function figures({ sides }, quantities) {
  const columns = [["Figure", "short"], ...sides.map(({ name }) => [name, "number"])];
  const rows = quantities.filter(({ name }) => name in sides[0].figures).map((quantity) =>
    [quantity.title, ...sides.map(({ figures: found }) => found[quantity.name] ? quantityText(quantity, found[quantity.name].mean) : quantity.name === "joules" ? "not measured" : "–")]);
  const phases = [...new Set(sides.flatMap((side) => Object.keys(side.time_fractions)))].map((phase) =>
    [`Time: ${phase}`, ...sides.map((side) => percent(side.time_fractions[phase] ?? 0, 1))]);
  return table("Figures of the runs", columns, [...rows, ...phases], "stack");
}

function differences(title, found, names) {
  const rows = Object.entries(found).map(([name, values]) => [name, ...values.map((value) => (value === null || value === "" ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value)))]);
  return [h("h3", {}, title), rows.length ? table(`${title}: differences`, [["Setting", "names"], ...names.map((name) => [name, "words"])], rows, "stack")
    : h("p", { class: "none" }, "No difference.")];
}
