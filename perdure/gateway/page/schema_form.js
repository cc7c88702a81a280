/** A form from a JSON Schema, for the arguments of a call and the input of a start. What it cannot draw is edited as JSON. */

import { html, useState } from "./base.js";
import { words } from "./parts.js";

/** @typedef {Record<string, any>} Schema */

/**
 * The schema of a value that has none, so that a person can edit its fields.
 * @param {any} value @returns {Schema}
 */
export function schemaOf(value) {
  if (Array.isArray(value)) return { type: "array", items: value.length ? schemaOf(value[0]) : {} };
  if (value === null) return {};
  if (typeof value !== "object") return { type: typeof value };
  const properties = Object.fromEntries(
    Object.entries(value).map(([name, field]) => [name, schemaOf(field)]),
  );
  return { type: "object", properties };
}

/** The schema of a field: of several alternatives the one that fits the value. @param {Schema} schema @param {any} value */
function resolve(schema, value) {
  const choices = schema.anyOf ?? schema.oneOf;
  if (Array.isArray(schema.type))
    return { ...schema, type: schema.type.find((type) => fits({ type }, value)) ?? schema.type[0] };
  if (!choices) return schema;
  const fit = choices.find((/** @type {Schema} */ choice) => fits(choice, value)) ?? choices[0];
  return { ...schema, anyOf: undefined, oneOf: undefined, ...fit };
}

/** @param {Schema} schema @param {any} value */
function fits({ type }, value) {
  if (type === "integer") return Number.isInteger(value);
  if (type === "array") return Array.isArray(value);
  if (type === "null") return value === null;
  if (type === "object")
    return value !== null && typeof value === "object" && !Array.isArray(value);
  return typeof value === type;
}

/** @param {Schema} schema @returns {any} What a new field holds. */
export function emptyOf(schema) {
  if (schema.default !== undefined) return schema.default;
  if (schema.const !== undefined) return schema.const;
  const { type } = resolve(schema, undefined);
  if (type === "object") {
    const needed = (schema.required ?? []).filter(
      (/** @type {string} */ name) => schema.properties?.[name],
    );
    return Object.fromEntries(
      needed.map((/** @type {string} */ name) => [name, emptyOf(schema.properties[name])]),
    );
  }
  return type === "array" ? [] : type === "boolean" ? false : type === "string" ? "" : undefined;
}

/**
 * The reasons why a value does not fit its schema, each with the field's path. The gateway and the run check it again.
 * @param {Schema} schema @param {any} value @param {string} [path] @returns {string[]}
 */
export function faultsIn(schema, value, path = "") {
  const at = path || "the value";
  const own = resolve(schema, value);
  if (value === undefined) return [`${at}: is missing`];
  if (own.enum && !own.enum.includes(value)) return [`${at}: one of ${own.enum.join(", ")}`];
  if (
    own.type === "number"
      ? typeof value !== "number" || Number.isNaN(value)
      : own.type && !fits(own, value)
  ) {
    return [`${at}: is not ${/^[aeio]/.test(own.type) ? "an" : "a"} ${own.type}`];
  }
  if (typeof value === "number") {
    if (own.minimum !== undefined && value < own.minimum) return [`${at}: at least ${own.minimum}`];
    if (own.maximum !== undefined && value > own.maximum) return [`${at}: at most ${own.maximum}`];
  }
  if (typeof value === "string") {
    if (own.minLength !== undefined && value.length < own.minLength)
      return [`${at}: at least ${own.minLength} characters`];
    if (own.maxLength !== undefined && value.length > own.maxLength)
      return [`${at}: at most ${own.maxLength} characters`];
  }
  const inner = (/** @type {string | number} */ name) => (path ? `${path}.${name}` : `${name}`);
  if (Array.isArray(value) && own.items)
    return value.flatMap((each, n) => faultsIn(own.items, each, inner(n)));
  if (own.type !== "object" || !own.properties) return [];
  const missing = (own.required ?? []).filter(
    (/** @type {string} */ name) => value[name] === undefined,
  );
  const present = Object.keys(value).filter(
    (name) => own.properties[name] && value[name] !== undefined,
  );
  return [
    ...missing.map((/** @type {string} */ name) => `${inner(name)}: is missing`),
    ...present.flatMap((name) => faultsIn(own.properties[name], value[name], inner(name))),
  ];
}

/**
 * @param {{ schema: Schema, value: any, onChange: (value: any) => void, name?: string, path: string, isNeeded?: boolean }} props
 */
export function SchemaField({ schema, value, onChange, name = "", path, isNeeded = false }) {
  const own = resolve(schema, value);
  const label = `${own.title ?? words(name)}${isNeeded ? " *" : ""}`;
  const about = own.description
    ? html`<small id=${`${path}-about`}>${own.description}</small>`
    : null;
  const common = { id: path, name: path, "aria-describedby": about ? `${path}-about` : undefined };
  const given = { label, about, path };
  if (own.enum) {
    const options = own.enum.map(
      (/** @type {any} */ each) =>
        html`<option value=${JSON.stringify(each)}>${String(each)}</option>`,
    );
    return html`<${Labelled} ...${given}>
      <select ...${common} value=${JSON.stringify(value)} onChange=${(/** @type {any} */ it) => onChange(read(it.target.value))}>
        ${isNeeded ? null : html`<option value="">–</option>`}${options}
      </select>
    <//>`;
  }
  if (own.type === "boolean") {
    return html`<div class="field check">
      <label><input type="checkbox" ...${common} checked=${value === true} onChange=${(/** @type {any} */ it) => onChange(it.target.checked)} />
        ${label}</label
      >${about}
    </div>`;
  }
  if (own.type === "integer" || own.type === "number") {
    return html`<${Labelled} ...${given}>
      <input
        type="number"
        ...${common}
        step=${own.type === "integer" ? 1 : "any"}
        min=${own.minimum}
        max=${own.maximum}
        value=${value ?? ""}
        onInput=${(/** @type {any} */ it) => onChange(Number.isNaN(it.target.valueAsNumber) ? undefined : it.target.valueAsNumber)}
      />
    <//>`;
  }
  if (own.type === "string") {
    const isLong =
      String(value ?? "").length > 80 || String(value ?? "").includes("\n") || own.maxLength > 500;
    const field = {
      ...common,
      value: value ?? "",
      onInput: (/** @type {any} */ it) => onChange(it.target.value),
    };
    const lines = Math.min(Math.max(String(value ?? "").split("\n").length + 1, 4), 20);
    return html`<${Labelled} ...${given}>
      ${isLong ? html`<textarea rows=${lines} ...${field}></textarea>` : html`<input type="text" autocomplete="off" ...${field} />`}
    <//>`;
  }
  if (own.type === "object" && own.properties)
    return html`<${ObjectField} ...${{ own, value, onChange, label, about, path }} />`;
  if (own.type === "array" && own.items)
    return html`<${ArrayField} ...${{ own, value, onChange, label, about, path }} />`;
  return html`<${JsonField} ...${{ value, onChange, label, about, path, common }} />`;
}

/** @param {string} text */
const read = (text) => (text ? JSON.parse(text) : undefined);

/** @param {any} props */
const Labelled = ({ label, about, path, children }) =>
  html`<div class="field"><label for=${path}>${label}</label>${children}${about}</div>`;

/** @param {any} props */
function ObjectField({ own, value, onChange, label, about, path }) {
  const held = value ?? {};
  const others = Object.keys(held).filter((name) => !own.properties[name]);
  const all = {
    ...own.properties,
    ...Object.fromEntries(others.map((name) => [name, schemaOf(held[name])])),
  };
  return html`<fieldset>
    ${label && html`<legend>${label}</legend>`}${about}
    ${Object.entries(all).map(
      ([name, schema]) =>
        html`<${SchemaField}
          key=${name}
          schema=${schema}
          name=${name}
          path=${`${path}-${name}`}
          value=${held[name]}
          isNeeded=${(own.required ?? []).includes(name)}
          onChange=${(/** @type {any} */ field) => onChange(withField(held, name, field))}
        />`,
    )}
  </fieldset>`;
}

/** A copy with another field; one that is undefined is left out. @param {any} held @param {string} name @param {any} field */
function withField(held, name, field) {
  const { [name]: _, ...others } = held;
  const order = Object.keys(held).includes(name) ? Object.keys(held) : [...Object.keys(held), name];
  const now = { ...others, ...(field === undefined ? {} : { [name]: field }) };
  return Object.fromEntries(order.filter((each) => each in now).map((each) => [each, now[each]]));
}

/** @param {any} props */
function ArrayField({ own, value, onChange, label, about, path }) {
  const held = Array.isArray(value) ? value : [];
  return html`<fieldset>
    <legend>${label || "items"}</legend>
    ${about}
    ${held.map(
      (each, n) =>
        html`<div class="item" key=${n}>
          <${SchemaField}
            schema=${own.items}
            name=${`${n + 1}`}
            path=${`${path}-${n}`}
            value=${each}
            onChange=${(/** @type {any} */ now) => onChange(held.map((other, m) => (m === n ? now : other)))}
          /><button
            type="button"
            class="plain"
            aria-label=${`remove ${label} ${n + 1}`}
            onClick=${() => onChange(held.filter((_, m) => m !== n))}
          >
            remove
          </button>
        </div>`,
    )}
    <button type="button" class="plain" onClick=${() => onChange([...held, emptyOf(own.items) ?? null])}>add</button>
  </fieldset>`;
}

/** @param {any} props */
function JsonField({ value, onChange, label, about, path, common }) {
  const [text, setText] = useState(JSON.stringify(value, null, 2) ?? "");
  const [fault, setFault] = useState("");
  const take = (/** @type {string} */ now) => {
    setText(now);
    try {
      onChange(read(now));
      setFault("");
    } catch {
      onChange(NaN); // so that the form is not sent
      setFault("not JSON yet");
    }
  };
  return html`<${Labelled} ...${{ label: `${label} (JSON)`, about, path }}>
    <textarea rows="4" spellcheck="false" ...${common} value=${text} onInput=${(/** @type {any} */ it) => take(it.target.value)}></textarea>
    <small role="status">${fault}</small>
  <//>`;
}
