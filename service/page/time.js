/** Time breakdown of the replicas: a bar, and the fraction of each phase. */

import { h, s } from "./dom.js";
import { duration, percent } from "./format.js";

/** Return the bar and its phases; null before the run's start. */
export function timeSplit({ phases, elapsed_seconds: elapsed }) {
  if (elapsed <= 0) return null;
  const shown = phases.filter(({ fraction }) => fraction > 0);
  const said = shown.map(({ name, fraction }) => `${name} ${percent(fraction, 1)}`).join(", ");
  let left = 0;
  const parts = shown.map(({ name, fraction }) => {
    left += fraction;
    return s("rect", { class: kind(name), x: 1000 * (left - fraction), width: 1000 * fraction, y: 0, height: 18 });
  });
  return [
    s("svg", { class: "strip split", viewBox: "0 0 1000 18", preserveAspectRatio: "none", role: "img", "aria-label": `Time of all replicas: ${said}` }, parts),
    h("dl", { class: "shares" }, shown.map(({ name, seconds, fraction }) =>
      h("div", { "data-phase": name },
        h("dt", {}, s("svg", { class: "key", viewBox: "0 0 10 10", "aria-hidden": "true" }, s("rect", { class: kind(name), width: 10, height: 10 })), name),
        h("dd", {}, percent(fraction, 1), h("span", { class: "exact" }, duration(seconds)))))),
  ];
}

function kind(name) {
  return name.replaceAll(" ", "-");
}
