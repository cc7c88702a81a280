/** Lists: runs with filters, conversations, agents, follow-ups, schedules, mailboxes, dead letters. */

import { html, placeOf, request, useAction, useLook, useState } from "./base.js";
import { Ago, brief, countText, Failure, LongList, RunLink, Status, words } from "./parts.js";
import { RunRow } from "./now.js";

const PAGE = 200; // runs
const STATUSES = [
  "queued",
  "running",
  "waiting_on_human",
  "waiting_on_tool",
  "completed",
  "escalated",
  "failed",
  "timed_out",
  "cancelled",
];

/** @param {{ query: URLSearchParams, webUi: string | null, overview: any }} props */
export function RunsScreen({ query, webUi, overview }) {
  const asked = new URLSearchParams([...query].filter(([, value]) => value));
  const { runs, hasMore, more, error, busy } = usePages(
    `v1/runs?${new URLSearchParams([...asked, ["limit", `${PAGE}`]])}`,
  );
  const set = (/** @type {any} */ it) => {
    const fields = [...new FormData(it.currentTarget)]
      .map(([name, value]) => [name, String(value).trim()])
      .filter(([, value]) => value);
    location.hash = `${placeOf("runs")}?${new URLSearchParams(fields)}`;
  };
  const list =
    webUi &&
    `${webUi}/namespaces/${overview.namespace}/workflows?query=${encodeURIComponent(overview.query)}`;
  return html`<section class="list-screen" aria-labelledby="list-title">
    <h2 id="list-title">Runs</h2>
    <form class="filter" aria-label="filter of the runs" onChange=${set} onSubmit=${(/** @type {Event} */ it) => it.preventDefault()}>
      <input name="agent" aria-label="agent" placeholder="agent" value=${query.get("agent") ?? ""} />
      <select name="status" aria-label="status" value=${query.get("status") ?? ""}>
        <option value="">any status</option>
        ${STATUSES.map((status) => html`<option value=${status}>${words(status)}</option>`)}
      </select>
      <select name="since" aria-label="began" value=${query.get("since") ?? ""}>
        <option value="">any time</option>
        ${["1h", "24h", "7d", "30d"].map((age) => html`<option value=${age}>in the last ${age}</option>`)}
      </select>
      <input name="conversation" aria-label="conversation" placeholder="conversation" value=${query.get("conversation") ?? ""} />
      ${list && html`<a href=${list} target="_blank" rel="noreferrer">in Temporal's Web UI</a>`}
    </form>
    <${Failure} text=${error} />
    ${runs && !runs.length && html`<p class="quiet">No such run.</p>`}
    ${
      runs?.length > 0 &&
      html`<${LongList}
      items=${runs}
      guess=${54}
      label="runs"
      keyOf=${(/** @type {any} */ run) => run.run_id}
      row=${(/** @type {any} */ run) => html`<${RunRow} run=${run} />`}
    />`
    }
    ${hasMore && html`<button type="button" disabled=${busy} onClick=${more}>older runs</button>`}
    ${
      list &&
      html`<details>
      <summary>columns in Temporal's Web UI</summary>
      <p>In its list, choose the columns <code>AgentStatus</code>, <code>AgentName</code>, <code>WaitingFor</code>, <code>CostUsd</code> and <code>AgentStep</code> ("Configure Workflow List"), and save <code>${overview.query}</code> as a query.</p>
    </details>`
    }
  </section>`;
}

/** The pages of a list so far; a run that ended between two pages may be on both. @param {string} path */
function usePages(path) {
  const { value, error } = useLook(path);
  const [older, setOlder] = useState(
    /** @type {{ path: string, runs: any[], cursor: string | null }} */ ({
      path: "",
      runs: [],
      cursor: null,
    }),
  );
  const { busy, error: failure, act } = useAction();
  const isOwn = older.path === path;
  const cursor = isOwn ? older.cursor : value?.cursor;
  const more = () =>
    act(async () => {
      const page = await request(`${path}&cursor=${encodeURIComponent(cursor)}`);
      setOlder({ path, runs: [...(isOwn ? older.runs : []), ...page.runs], cursor: page.cursor });
    });
  const all = value && [...value.runs, ...(isOwn ? older.runs : [])];
  const runs = all && [...new Map(all.map((/** @type {any} */ run) => [run.run_id, run])).values()];
  return { runs, hasMore: Boolean(cursor), more, busy, error: failure || error?.message };
}

export function ConversationsScreen() {
  const { value, error } = useLook("v1/conversations?limit=100");
  const [name, setName] = useState("");
  const open = (/** @type {Event} */ event) => {
    event.preventDefault();
    if (name.trim()) location.hash = placeOf("conversation", name.trim());
  };
  return html`<section aria-labelledby="list-title">
    <h2 id="list-title">Conversations</h2>
    <form class="filter" onSubmit=${open}>
      <input aria-label="name of a conversation" placeholder="name of a conversation" value=${name} onInput=${(/** @type {any} */ it) => setName(it.target.value)} />
      <button disabled=${!name.trim()}>Open</button>
    </form>
    <${Failure} text=${error?.message} />
    ${value && !value.conversations.length && html`<p class="quiet">There is no conversation yet.</p>`}
    <ul class="rows">
      ${value?.conversations.map(
        (/** @type {any} */ each) =>
          html`<li key=${each.conversation_id}>
            <a href=${placeOf("conversation", each.conversation_id)}>${each.conversation_id}</a> <span class="state ${each.status === "busy" ? "works" : "quiet"}">${words(each.status)}</span>${" "}
            <small>began <${Ago} at=${each.started_at} /></small>
          </li>`,
      )}
    </ul>
  </section>`;
}

/** @param {{ agents: any }} props */
export function AgentsScreen({ agents }) {
  if (!agents) return html`<p class="quiet">…</p>`;
  return html`<section aria-labelledby="list-title">
    <h2 id="list-title">Agents</h2>
    ${agents.faulty.length > 0 && html`<p class="bad">These files do not load: ${agents.faulty.join(", ")}</p>`}
    ${agents.agents.map((/** @type {any} */ agent) => html`<${AgentCard} key=${agent.name} agent=${agent} />`)}
  </section>`;
}

/** @param {{ agent: any }} props */
function AgentCard({ agent }) {
  const limits = Object.entries(agent.limits).map(
    ([name, value]) => `${words(name)} ${JSON.stringify(value)}`,
  );
  return html`<article class="card">
    <h3>${agent.name}</h3>
    <p>${agent.description}</p>
    <dl class="facts">
      ${agent.external ? html`<dt>lives</dt><dd>outside, and exchanges files</dd>` : html`<dt>models</dt><dd>${agent.models.join(", then ")}</dd>`}
      ${agent.pace && html`<dt>pace</dt><dd>${agent.pace}</dd>`}
      ${limits.length > 0 && html`<dt>limits</dt><dd>${limits.join(", ")}</dd>`}
      ${agent.peers.length > 0 && html`<dt>delegates to</dt><dd>${agent.peers.join(", ")}</dd>`}
      ${agent.server_tools.length > 0 && html`<dt>provider's tools</dt><dd>${agent.server_tools.join(", ")}</dd>`}
    </dl>
    ${
      agent.tools.length > 0 &&
      html`<div class="table-box" role="region" aria-label=${`tools of ${agent.name}`} tabindex="0">
      <table>
        <thead><tr>${["tool", "kind", "effect", "approval", "about"].map((title) => html`<th scope="col">${title}</th>`)}</tr></thead>
        <tbody>
          ${agent.tools.map((/** @type {any} */ tool) => html`<tr><td><code>${tool.name}</code></td><td>${tool.kind ?? "?"}</td><td>${tool.effect ?? "?"}</td><td>${tool.approval ?? "?"}</td><td>${brief(tool.description, 120)}</td></tr>`)}
        </tbody>
      </table>
    </div>`
    }
    <p><a class="button" href=${`${placeOf("start")}?agent=${encodeURIComponent(agent.name)}`}>Start a run</a> <a href=${`${placeOf("runs")}?agent=${encodeURIComponent(agent.name)}`}>its runs</a></p>
  </article>`;
}

/** @param {any} at @param {string} name */
const timed = (at, name) => at && html`<span class="part">${name} <${Ago} at=${at} /></span>`;

/** The lists of features: where each comes from, and what a row says. */
const LISTS = {
  "follow-ups": {
    title: "Follow-ups",
    path: "v1/follow-ups?limit=100",
    empty: "No work waits for something outside.",
    row: (/** @type {any} */ it) =>
      html`<strong>${it.run_id}</strong> <${Status} run=${it} /> ${it.summary}
        <small
          >${it.open_tasks !== null && html`<span class="part">${countText(it.open_tasks, "open task")}</span>`} ${timed(it.next_at, "next")} ${timed(it.started_at, "began")}
          <span class="part">goes on in <a href=${placeOf("conversation", it.conversation)}>${it.conversation}</a></span></small
        >`,
  },
  schedules: {
    title: "Schedules",
    path: "v1/schedules?limit=100",
    empty: "No schedule starts runs.",
    row: (/** @type {any} */ it) =>
      html`<strong>${it.name}</strong> ${it.is_paused && html`<span class="state asks">paused</span>`} ${brief(it.goal, 200)}
        <small
          ><span class="part">${it.when}</span>${timed(it.next, "next")}${it.latest && html`<span class="part">latest <${RunLink} id=${it.latest} /></span>`}
          ${it.skipped + it.missed > 0 && html`<span class="part bad">${it.skipped} skipped, ${it.missed} missed</span>`}</small
        >`,
  },
  mailboxes: {
    title: "Mailboxes",
    path: "v1/mailboxes?limit=100",
    empty: "No mailbox was used here.",
    row: (/** @type {any} */ it) =>
      html`<strong>${it.agent}</strong> ${!it.available && html`<span class="state bad">its folder is not here</span>`} ${it.name}
        <small
          >${it.available && html`<span class="part">${it.waiting} waiting, ${it.open ?? 0} in hand, ${it.dead_letters} dead</span>`}${timed(it.heartbeat_at, "bridge")}
          ${it.trouble && html`<span class="part bad">${it.trouble}</span>`}</small
        >`,
  },
  "dead-letters": {
    title: "Dead letters",
    path: "v1/dead-letters?limit=100",
    empty: "No event or notice was lost.",
    row: (/** @type {any} */ it) =>
      html`<strong>${it.id}</strong> <small>${it.kind} ${it.failed_at && html`<${Ago} at=${it.failed_at} />`}</small>
        <p class="bad">${it.reason}</p>`,
  },
};

/** @param {{ name: string }} props */
export function FeatureScreen({ name }) {
  const { title, path, empty, row } = LISTS[/** @type {"schedules"} */ (name)];
  const { value, error } = useLook(path);
  /** @type {any[] | undefined} */
  const rows = value && Object.values(value).find(Array.isArray);
  const isPartial = value?.is_partial || value?.cursor;
  return html`<section aria-labelledby="list-title">
    <h2 id="list-title">${title}</h2>
    <nav class="tabs" aria-label="lists">
      ${Object.entries(LISTS).map(([each, list]) => html`<a href=${placeOf(each)} aria-current=${each === name ? "page" : undefined}>${list.title}</a>`)}
    </nav>
    <${Failure} text=${error?.message} />
    ${rows && !rows.length && html`<p class="quiet">${empty}</p>`}
    <ul class="rows">
      ${rows?.map((each) => html`<li key=${each.run_id ?? each.id ?? each.name}>${row(each)}</li>`)}
    </ul>
    ${isPartial && html`<p class="quiet">There are more; the terminal lists all.</p>`}
    ${name === "dead-letters" && Boolean(rows?.length) && html`<p class="quiet">Start one again with <code>perdure redeliver ID</code>.</p>`}
  </section>`;
}
