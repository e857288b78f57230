/** The form that submits a run: its fields come from the schema of the configuration. */

import { Refused, text } from "./api.js";
import { send } from "./changes.js";
import { h, show } from "./dom.js";

/** Let a details element with a form submit runs; read presets and schema when it is opened. */
export function submitForm(element, outcome, frame) {
  const form = element.querySelector("form");
  const settings = form.querySelector("[data-part=settings]");
  let known = null;

  element.addEventListener("toggle", async () => {
    if (!element.open || known !== null) return;
    try {
      known = JSON.parse(await text("presets"));
      const first = form.elements.preset.value;
      show(form.elements.preset, known.presets.map(({ name }) => h("option", { selected: name === first }, name)));
      draw();
    } catch (error) {
      show(outcome, error.message);
    }
  });
  form.elements.preset.addEventListener("change", draw);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    mark(form, []);
    const refused = await send("runs", submission(form), outcome, frame, ({ id }) => `Submission ${id} is in the queue.`);
    if (refused instanceof Refused) mark(form, refused.errors);
  });

  function draw() {
    const preset = known.presets.find(({ name }) => name === form.elements.preset.value);
    const { properties, $defs: definitions } = known.configuration_schema;
    const sections = Object.entries(properties).filter(([name]) => name !== "preset").map(([name, schema]) => [name, resolved(schema, definitions)]);
    show(settings,
      h("fieldset", {}, h("legend", {}, "general"), sections.filter(([, { properties: inner }]) => !inner).map(([name, schema]) => field(name, schema, preset.configuration[name]))),
      sections.filter(([, { properties: inner }]) => inner).map(([name, schema]) =>
        h("details", {}, h("summary", {}, name), section(name, schema, preset.configuration[name], definitions))));
  }
}

/** Return a schema without a reference, and without the alternative null. */
function resolved(schema, definitions) {
  const single = schema.anyOf?.filter(({ type }) => type !== "null") ?? [];
  if (single.length === 1) return { ...schema, anyOf: undefined, ...resolved(single[0], definitions), nullable: true };
  return schema.$ref ? { ...definitions[schema.$ref.split("/").at(-1)], description: schema.description } : schema;
}

function section(path, schema, values, definitions) {
  return h("fieldset", {}, h("legend", {}, path), Object.entries(schema.properties).map(([name, raw]) => {
    const inner = resolved(raw, definitions);
    const place = `${path}.${name}`;
    return inner.properties && !inner.nullable ? section(place, inner, values?.[name], definitions) : field(place, inner, values?.[name]);
  }));
}

function field(path, schema, value) {
  const usual = typeof value === "string" ? value : JSON.stringify(value ?? null);
  const choices = schema.type === "boolean" ? [true, false] : schema.enum;
  const common = { name: `settings.${path}`, "data-type": schema.type ?? "any" };
  const number = ["integer", "number"].includes(schema.type) && !schema.nullable;
  return h("label", {}, path.split(".").at(-1),
    choices ? h("select", common, h("option", { value: "" }, `${usual} (preset)`), choices.map((each) => h("option", {}, String(each))))
      : h("input", { ...common, placeholder: usual, type: number ? "number" : null }),
    schema.description ? h("small", {}, schema.description) : null);
}

/** Return the submission that a form describes: settings that are empty stay the preset's. */
function submission(form) {
  const found = { settings: {} };
  for (const element of form.elements) {
    if (!element.name || (element.value.trim() === "" && !element.validity.badInput)) continue;
    const path = element.name.split(".");
    const last = path.pop();
    let target = found;
    for (const each of path) target = target[each] ??= {};
    target[last] = parsed(element.value.trim(), element.dataset.type ?? element.type);
  }
  return found;
}

function parsed(value, type) {
  if (type === "string" || ["text", "select-one"].includes(type)) return value;
  try {
    return JSON.parse(value);
  } catch {
    return value; // The service reports what is wrong with it.
  }
}

/** Put each error beside its field, and the first one in view. */
function mark(form, errors) {
  for (const old of form.querySelectorAll(".error")) old.remove();
  for (const element of form.querySelectorAll("[aria-invalid]")) {
    element.removeAttribute("aria-invalid");
    element.removeAttribute("aria-describedby");
  }
  for (const [place, { where, message }] of errors.entries()) {
    const path = where.split(".").slice(1);
    while (path.length && !form.elements[path.join(".")]) path.pop(); // An item of a list has the list's field.
    if (!path.length) continue;
    const element = form.elements[path.join(".")];
    const id = `error-${place}`;
    element.setAttribute("aria-invalid", "true");
    element.setAttribute("aria-describedby", id);
    element.after(h("span", { class: "error", id }, message));
    for (let outer = element.closest("details"); outer !== null; outer = outer.parentElement.closest("details")) outer.open = true;
  }
  form.querySelector("[aria-invalid]")?.focus();
}
