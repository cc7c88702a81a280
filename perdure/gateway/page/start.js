/** Start a run: an agent, a goal, files, and the agent's own input as a form. */

import { html, lookAgain, placeOf, request, useAction, useState } from "./base.js";
import { Failure } from "./parts.js";
import { FileField, uploadAll } from "./question.js";
import { emptyOf, faultsIn, SchemaField } from "./schema_form.js";

const AGAIN = "perdure-again"; // a goal that is to be started again, from a run's screen

function readAgain() {
  const kept = sessionStorage.getItem(AGAIN);
  sessionStorage.removeItem(AGAIN);
  return kept ? JSON.parse(kept) : {};
}

/** @param {{ query: URLSearchParams, agents: any, can: (scope: string) => boolean }} props */
export function StartScreen({ query, agents, can }) {
  const [again] = useState(readAgain);
  const [name, setName] = useState(query.get("agent") ?? again.agent ?? "");
  const [goal, setGoal] = useState(again.goal ?? "");
  const [isDry, setDry] = useState(false);
  const [files, setFiles] = useState(/** @type {File[]} */ ([]));
  const [input, setInput] = useState(/** @type {any} */ (undefined));
  const [key] = useState(() => crypto.getRandomValues(new Uint32Array(4)).join("-")); // a start that is sent twice is one run
  const { busy, error, act } = useAction();
  if (!can("runs:start"))
    return html`<p class="quiet">This session may not start runs: its token needs the scope <code>runs:start</code>.</p>`;
  const known = agents?.agents ?? [];
  const agent = known.find((/** @type {any} */ each) => each.name === (name || "default"));
  const schema = agent?.input_schema;
  const value = input ?? (schema ? emptyOf(schema) : undefined);
  const faults = schema ? faultsIn(schema, value) : [];
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    act(async () => {
      const attachments = await uploadAll(files);
      const payload = {
        goal: goal.trim(),
        ...(name ? { agent: name } : {}),
        ...(schema ? { context: value } : {}),
        ...(attachments.length ? { attachments } : {}),
        ...(isDry ? { dry_run: true } : {}),
      };
      const { run_id } = await request("v1/runs", { body: { payload }, key });
      lookAgain();
      location.hash = placeOf("run", run_id);
    });
  };
  return html`<section class="start" aria-labelledby="start-title">
    <h2 id="start-title">Start a run</h2>
    <form onSubmit=${submit}>
      <div class="field">
        <label for="agent">agent</label>
        <select id="agent" value=${name} onChange=${(/** @type {any} */ it) => (setName(it.target.value), setInput(undefined))}>
          <option value="">default</option>
          ${known.filter((/** @type {any} */ each) => each.name !== "default" && !each.external).map((/** @type {any} */ each) => html`<option value=${each.name}>${each.name}</option>`)}
        </select>
        ${agent && html`<small>${agent.description}</small>`}
      </div>
      <div class="field">
        <label for="goal">goal *</label>
        <textarea id="goal" rows="5" required value=${goal} onInput=${(/** @type {any} */ it) => setGoal(it.target.value)}></textarea>
      </div>
      ${schema && html`<${SchemaField} schema=${{ title: "input", ...schema }} value=${value} onChange=${setInput} path="input" />`}
      <ul class="faults" role="status">${faults.map((fault) => html`<li>${fault}</li>`)}</ul>
      <${FileField} files=${files} setFiles=${setFiles} label="Attach images and PDF to the goal" />
      <label class="check"><input type="checkbox" name="dry" checked=${isDry} onChange=${(/** @type {any} */ it) => setDry(it.target.checked)} /> dry run: make reads only, and list the other calls</label>
      <button class="first" disabled=${busy || !goal.trim() || faults.length > 0}>${isDry ? "Start a dry run" : "Start"}</button>
      <${Failure} text=${error} />
    </form>
  </section>`;
}
