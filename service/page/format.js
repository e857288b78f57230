/** Numbers and times as text, in the formats of the terminal and the report. */

const PREFIXES = ["", "k", "M", "G", "T", "P", "E", "Z", "Y"];
const NONE = "–";

/** Return a number with three digits and its SI unit: `1.23 TOPS` for 1.23e12. */
export function si(value, unit) {
  if (value === null || value === undefined) return NONE;
  if (value === 0) return `0 ${unit}`.trim();
  let power = PREFIXES.findIndex((_, place) => Math.abs(value) < 999.5 * 1000 ** place);
  if (power < 0) power = PREFIXES.length - 1;
  const scaled = value / 1000 ** power;
  const digits = Math.abs(scaled) < 999.5 ? scaled.toPrecision(3) : Math.round(scaled).toLocaleString("en");
  return `${digits} ${PREFIXES[power]}${unit}`.trim();
}

/** Return a whole number with separated thousands. */
export function whole(value) {
  return Math.round(value).toLocaleString("en");
}

/** Return a fraction as a percentage; a dash when there is none. */
export function percent(fraction, digits = 2) {
  return fraction === null || fraction === undefined ? NONE : `${(100 * fraction).toFixed(digits)}%`;
}

/** Return a quality as text: an accuracy as a percentage. */
export function quality(value, metric) {
  if (value === null || value === undefined) return NONE;
  return metric === "accuracy" ? percent(value) : figure(value);
}

const FORMATS = {
  si,
  percent: (value) => percent(value),
  duration,
  count: whole,
  number: figure,
};

/** Return a number with four digits. */
export function figure(value) {
  return value === null || value === undefined ? NONE : String(Number(value.toPrecision(4)));
}

/** Return the value of a headline figure as text; a dash when there is none. */
export function quantityText({ format, unit }, value) {
  return value === null || value === undefined ? NONE : FORMATS[format](value, unit);
}

/** Return the name of a metric as text. */
export function metricLabel(metric) {
  return metric.replaceAll("_", " ");
}

/** Return text with a capital letter. */
export function capitalized(text) {
  return `${text[0].toUpperCase()}${text.slice(1)}`;
}

/** Return seconds as `4.2 s`, `3 min 05 s` or `2 h 03 min 05 s`. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const [hours, minutes, rest] = parts(Math.round(seconds));
  return hours ? `${hours} h ${two(minutes)} min ${two(rest)} s` : `${minutes} min ${two(rest)} s`;
}

/** Return seconds as `1:02:03`, for axes. */
export function clock(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  const [hours, minutes, rest] = parts(Math.max(0, Math.floor(seconds)));
  return `${hours}:${two(minutes)}:${two(rest)}`;
}

function parts(seconds) {
  return [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, seconds % 60];
}

function two(number) {
  return String(number).padStart(2, "0");
}

/** Return bytes in binary units with up to four digits: `12 GiB`. */
export function size(bytes) {
  if (bytes === null || bytes === undefined) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let value = bytes;
  while (value >= 1023.5 && units.length > 1) {
    value = Math.max(value / 1024, 1);
    units.shift();
  }
  return `${value < 1000 ? Number(value.toPrecision(4)) : value.toFixed(0)} ${units[0]}`;
}

/** Return UTC seconds as `2026-01-01 00:00 UTC`. */
export function moment(utc) {
  if (utc === null || utc === undefined) return NONE;
  return `${new Date(utc * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC`;
}

/** Return a count with its noun: `1 trial`, `2 trials`. */
export function number(count, noun) {
  return `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
}
