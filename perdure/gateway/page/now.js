/** The first screen: what waits for a person, what is broken, what runs, and what it cost. */

import { html, placeOf, useLook, useState } from "./base.js";
import { Ago, costText, countText, Failure, RunLink, Status, words } from "./parts.js";
import { QuestionList, TITLES } from "./question.js";

const DAY = 24 * 3600 * 1000;

/** The path of the overview of today, in the reader's zone: the gateway reads it once for all who ask for the same. */
export const overviewPath = () =>
  `v1/overview?since=${encodeURIComponent(new Date(new Date().setHours(0, 0, 0, 0)).toISOString())}`;

/** @param {{ can: (scope: string) => boolean, tools: Map<string, any> }} props */
export function NowScreen({ can, tools }) {
  const [filter, setFilter] = useState("");
  const [path] = useState(overviewPath);
  const { value: asked, error: askedError } = useLook(`v1/questions${filter && `?${filter}`}`);
  const { value: overview, error } = useLook(path);
  const { value: open } = useLook("v1/runs?limit=30");
  const spend = overview?.figures.budgets?.counts;
  const { value: budgets } = useLook(spend ? "v1/budgets" : null);
  const questions = asked?.questions ?? [];
  const running = (open?.runs ?? []).filter(
    (/** @type {any} */ run) => !run.closed_at && run.status !== "waiting_on_human",
  );
  return html`<div class="now">
    <section aria-labelledby="waits-title">
      <h2 id="waits-title">Waits for a person <span class="count">${questions.length || ""}</span></h2>
      <${Filter} filter=${filter} setFilter=${setFilter} />
      <${Failure} text=${askedError?.message} />
      ${asked && !questions.length && html`<p class="quiet">${filter ? "No such question is open." : "Nothing waits for a person."}</p>`}
      <${QuestionList} questions=${questions} tools=${tools} canAnswer=${can("human:answer")} />
      ${asked?.is_partial && html`<p class="quiet">More runs wait for a person than were looked at.</p>`}
    </section>
    <div class="side">
      <${Failure} text=${error?.message} />
      ${overview && html`<${Broken} overview=${overview} />`}
      <section aria-labelledby="runs-title">
        <h2 id="runs-title">Runs now <span class="count">${running.length || ""}</span></h2>
        ${running.length ? html`<${RunRows} runs=${running} />` : html`<p class="quiet">Nothing runs.</p>`}
        <p><a href=${placeOf("runs")}>all runs</a></p>
      </section>
      ${overview && html`<${Today} overview=${overview} />`}
      ${spend && budgets && html`<${Budgets} rows=${budgets.budgets} spend=${spend} />`}
      <section aria-labelledby="latest-title">
        <h2 id="latest-title">Latest</h2>
        <${RunRows} runs=${(open?.runs ?? []).filter((/** @type {any} */ run) => run.closed_at).slice(0, 10)} />
      </section>
    </div>
  </div>`;
}

/** @param {{ filter: string, setFilter: (filter: string) => void }} props */
function Filter({ filter, setFilter }) {
  const set = (/** @type {any} */ it) => {
    const fields = [...new FormData(it.currentTarget)].map(([name, value]) => [
      name,
      String(value).trim(),
    ]);
    setFilter(new URLSearchParams(fields.filter(([, value]) => value)).toString());
  };
  const input = (/** @type {string} */ name) =>
    html`<input name=${name} aria-label=${name} placeholder=${name} maxlength="200" autocomplete="off" />`;
  return html`<details class="filter">
    <summary>Filter${filter ? " (on)" : ""}</summary>
    <form aria-label="filter of the questions" onChange=${set} onSubmit=${(/** @type {Event} */ it) => it.preventDefault()}>
      ${["agent", "tool", "group"].map(input)}
      <select name="kind" aria-label="kind">
        <option value="">any kind</option>
        ${Object.entries(TITLES).map(([kind, title]) => html`<option value=${kind}>${title}</option>`)}
      </select>
      <select name="older_than" aria-label="age">
        <option value="">any age</option>
        ${["1h", "4h", "1d"].map((age) => html`<option value=${age}>older than ${age}</option>`)}
      </select>
      <label><input type="checkbox" name="for_me" value="true" /> for me</label>
    </form>
  </details>`;
}

/** What features count; runs that cannot go on are listed by themselves. @type {Record<string, string>} */
const FINDINGS = {
  orphaned: "runs without their parent",
  unattended: "runs that no worker polls",
  claim: "calls that may have happened",
  overdue: "runs that wait too long",
  held: "runs that are held before their next call",
  left_store: "stores of runs that are gone",
};

/** What is broken or stuck, each with its next action. @param {{ overview: any }} props */
function Broken({ overview }) {
  /** @type {[string, number][]} */
  const findings = Object.values(overview.figures)
    .filter((/** @type {any} */ each) => each.are_findings)
    .flatMap((/** @type {any} */ each) => Object.entries(each.counts));
  const lines = [
    overview.has_worker === false &&
      html`<li class="bad">No worker polls the task queue <code>${overview.task_queue}</code>: start one with <code>perdure worker</code></li>`,
    ...overview.wedged.map(
      (/** @type {any} */ run) =>
        html`<li class="bad"><${RunLink} id=${run.run_id} /> cannot go on: ${run.wedged_by}. Its worker's log says more; <code>perdure doctor</code> too</li>`,
    ),
    overview.dead_letters > 0 &&
      html`<li><a href=${placeOf("dead-letters")}>${countText(overview.dead_letters, "dead letter")}</a>: begun or delivered nothing</li>`,
    ...findings
      .filter(([name, count]) => count > 0 && name !== "wedged")
      .map(
        ([name, count]) =>
          html`<li>${FINDINGS[name] ?? words(name)}: ${count.toLocaleString()} · <code>perdure doctor</code> says which</li>`,
      ),
    ...overview.failed.map(
      (/** @type {any} */ run) =>
        html`<li><${RunLink} id=${run.run_id} /> · ${run.agent} <${Status} run=${run} /> <${Ago} at=${run.closed_at} /></li>`,
    ),
  ].filter(Boolean);
  if (!lines.length) return null;
  return html`<section aria-labelledby="broken-title">
    <h2 id="broken-title">Broken or stuck <span class="count">${lines.length}</span></h2>
    <ul class="rows">${lines}</ul>
  </section>`;
}

/** @param {{ overview: any }} props */
function Today({ overview }) {
  const { agents } = overview;
  const sum = (/** @type {string} */ name) =>
    agents.reduce((/** @type {number} */ all, /** @type {any} */ agent) => all + agent[name], 0);
  const isToday = Date.now() - Date.parse(overview.since) <= DAY;
  return html`<section aria-labelledby="today-title">
    <h2 id="today-title">${isToday ? "Today" : html`Since <${Ago} at=${overview.since} />`}</h2>
    <p>${countText(sum("runs"), "run")}, ${costText(sum("cost_usd")) || "$0.00"}${overview.is_partial && " (of the latest 1,000 alone)"}</p>
    <table>
      <thead><tr><th scope="col">agent</th><th scope="col">runs</th><th scope="col">cost</th></tr></thead>
      <tbody>
        ${agents.map((/** @type {any} */ each) => html`<tr><td><a href=${`${placeOf("runs")}?agent=${encodeURIComponent(each.agent)}`}>${each.agent || "–"}</a></td><td>${each.runs}</td><td>${costText(each.cost_usd)}</td></tr>`)}
      </tbody>
    </table>
  </section>`;
}

const BUDGETS_SHOWN = 10;
const AGENT = "agent:"; // the name of the spend of an agent begins with it
const MICRO = 1e6; // of a USD

/** An amount of a budget, of its limit. @param {any} row */
const shareText = ({ measure, used, limit }) =>
  measure === "usd"
    ? `${costText(used / MICRO)} of ${costText(limit / MICRO)}`
    : `${used.toLocaleString()} of ${countText(limit, measure.replace(/s$/, ""))}`;

/** The allowances that runs share, fullest first. @param {{ rows: any[], spend: Record<string, number> }} props */
function Budgets({ rows, spend }) {
  const fullness = (/** @type {any} */ row) => (row.is_used_up ? 2 : row.used / row.limit);
  const shown = rows.toSorted((one, other) => fullness(other) - fullness(one));
  const agents = Object.entries(spend).filter(([name]) => name.startsWith(AGENT));
  const spent = agents.map(
    ([name, used]) => `${name.slice(AGENT.length)} ${costText(used / MICRO)}`,
  );
  return html`<section aria-labelledby="budgets-title">
    <h2 id="budgets-title">Budgets</h2>
    ${spent.length > 0 && html`<p>Spent today, in UTC: ${spent.join(", ")}</p>`}
    <table>
      <thead><tr><th scope="col">budget</th><th scope="col">used</th><th scope="col">resets</th></tr></thead>
      <tbody>
        ${shown.slice(0, BUDGETS_SHOWN).map(
          (row) => html`<tr>
            <td>${row.name}${row.value && ` of ${row.value}`}</td>
            <td>${shareText(row)}${row.is_used_up && html` <span class="state bad">used up</span>`}</td>
            <td>${row.resets_in === null ? "never" : html`<${Ago} at=${new Date(Date.now() + row.resets_in * 1000).toISOString()} />`}</td>
          </tr>`,
        )}
      </tbody>
    </table>
    ${rows.length > BUDGETS_SHOWN && html`<p class="quiet">${countText(rows.length - BUDGETS_SHOWN, "more budget")}: <code>perdure budget list</code></p>`}
  </section>`;
}

/** @param {{ runs: any[] }} props */
export function RunRows({ runs }) {
  return html`<ul class="rows runs">
    ${runs.map((run) => html`<li key=${run.run_id}><${RunRow} run=${run} /></li>`)}
  </ul>`;
}

/** @param {{ run: any }} props */
export const RunRow = ({ run }) =>
  html`<span class="run-row">
    <${RunLink} id=${run.run_id} /> <${Status} run=${run} />
    <small>${run.agent} · <${Ago} at=${run.started_at} />${run.cost_usd ? ` · ${costText(run.cost_usd)}` : ""}${run.waiting_for ? ` · ${run.waiting_for.replace("human: ", "")}` : ""}</small>
  </span>`;
