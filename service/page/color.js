/** Colors of fractions, and fractions of qualities. */

/** Dark to light, distinguishable by color-blind readers: evenly spaced colors of matplotlib's cividis. */
const COLORS = [[0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 142, 119], [200, 184, 102], [254, 232, 56]];

/** Return the color of a fraction from 0 to 1. */
export function color(fraction) {
  const place = Math.min(1, Math.max(0, fraction)) * (COLORS.length - 1);
  const [from, to] = [COLORS[Math.floor(place)], COLORS[Math.ceil(place)]];
  return `rgb(${from.map((part, channel) => Math.round(part + (to[channel] - part) * (place % 1))).join(" ")})`;
}

/** Return a function from a quality to a fraction from 0, the worst, to 1; null without a quality. */
export function rankOf(qualities, goal) {
  const known = qualities.filter((value) => value !== null);
  const [least, most] = [Math.min(...known), Math.max(...known)];
  return (value) => {
    if (value === null) return null;
    const fraction = most > least ? (value - least) / (most - least) : 1;
    return goal === "maximize" ? fraction : 1 - fraction;
  };
}
