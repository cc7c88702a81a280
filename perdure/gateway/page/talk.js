/** A run as a conversation, in the order in which it was said, and the list of all its calls. */

import { html, placeOf, useState } from "./base.js";
import { answerText, textOf, tokensText } from "./course.js";
import {
  brief,
  costText,
  durationText,
  Files,
  LongList,
  LongText,
  RunLink,
  Time,
  Value,
  words,
} from "./parts.js";
import { About } from "./question.js";

/** @param {{ course: import("./course.js").Course, runId: string, isOpen: boolean }} props */
export function Conversation({ course, runId, isOpen }) {
  const items = course.live
    ? [...course.said, { key: "live", kind: "live", at: 0, event: course.live }]
    : course.said;
  if (!items.length) return html`<p class="quiet">Nothing was said yet.</p>`;
  return html`<${LongList}
    class="talk"
    items=${items}
    guess=${70}
    label="conversation"
    follows=${isOpen}
    keyOf=${(/** @type {any} */ said) => said.key}
    row=${(/** @type {any} */ said) => html`<${Entry} said=${said} runId=${runId} />`}
  />`;
}

/** @param {{ said: any, runId: string }} props */
function Entry({ said, runId }) {
  const draw = ENTRIES[said.kind] ?? ENTRIES.note;
  return html`<div class=${`said ${said.kind}`}>${draw(said, runId)}</div>`;
}

/** @param {string} who @param {number} at @param {any} [more] */
const head = (who, at, more) =>
  html`<p class="who"><strong>${who}</strong> ${more} ${at > 0 && html`<${Time} at=${at} />`}</p>`;

/** How each kind of entry is drawn. @type {Record<string, (said: any, runId: string) => any>} */
const ENTRIES = {
  goal: ({ event, at, text }, runId) =>
    html`${head("goal", at, event.dry_run && html`<em>a dry run: calls that change something are not made</em>`)}
      <${LongText} text=${text} label="goal" /><${Files} runId=${runId} files=${event.attachments} />`,
  reply: ({ event, at, text, row }) =>
    html`${head(event.phase, at, html`<small>${row.note} · ${event.reply.model}</small>`)}
      <${Thought} content=${event.reply.content} />
      ${text && html`<${LongText} text=${text} label="reply" />`}
      ${event.reply.passed_over?.map((/** @type {any} */ skipped) => html`<p class="quiet">in place of ${skipped.model}: ${skipped.why}</p>`)}`,
  call: ({ row }, runId) => html`<${Call} row=${row} runId=${runId} />`,
  question: ({ event, at, row }) =>
    html`${head(row.name, at, html`<small>${row.end === null ? "still open" : `took ${durationText(row.end - row.start)}`}</small>`)}
      <${About} question=${event} />`,
  answer: ({ event, at }, runId) =>
    html`${head("answer", at)}
      <p>${answerText(event)}</p>
      <${Files} runId=${runId} files=${event.answer.attachments} />`,
  delegation: ({ row, at }) => html`${head("delegates", at)}<${Subtasks} row=${row} />`,
  followUp: ({ event, at, text }) =>
    html`${head("follow-up", at)}
      <p>${text}: <a href=${placeOf("follow-ups")}>${event.id}</a></p>`,
  summary: ({ event, at }) =>
    html`<details>
      <summary>older messages were summarized <${Time} at=${at} /></summary>
      <${LongText} text=${event.summary.text ?? ""} label="summary" />
    </details>`,
  failure: ({ at, text }) => html`<p class="bad">${text} <${Time} at=${at} /></p>`,
  live: ({ event }) =>
    html`${head(event.kind === "partial_text" ? "writes …" : "waits …", 0)}
      <pre aria-label="the model's partial text">${event.text}</pre>`,
  note: ({ at, text }) => html`<p class="quiet">${text} <${Time} at=${at} /></p>`,
};

/** The model's thinking, if its provider shows it. @param {{ content: any[] }} props */
function Thought({ content }) {
  const text = content
    .filter((block) => block.type === "thinking")
    .map((block) => block.thinking)
    .join("\n");
  if (!text) return null;
  return html`<details class="thought">
    <summary>thought: ${brief(text, 80)}</summary>
    <${LongText} text=${text} label="thinking" />
  </details>`;
}

/** @param {{ row: any }} props */
export function Subtasks({ row }) {
  const { request, runs, state } = row.delegation;
  const states = new Map((state?.subtasks ?? []).map((/** @type {any} */ each) => [each.id, each]));
  return html`<ul class="subtasks">
    ${request.subtasks.map((/** @type {any} */ subtask) => {
      const known = /** @type {any} */ (states.get(subtask.id));
      const name = `${subtask.id} · ${subtask.agent}`;
      return html`<li>
        ${runs[subtask.id] ? html`<${RunLink} id=${runs[subtask.id]}>${name}<//>` : name}
        ${known && html` <small>${words(known.status)}: ${brief(known.outcome, 200)}</small>`}
      </li>`;
    })}
  </ul>`;
}

/** A call with its result, folded. @param {{ row: any, runId: string }} props */
function Call({ row, runId }) {
  const [isOpen, setOpen] = useState(false);
  const mark = row.how === "open" ? "…" : row.how === "good" ? "✓" : "✗";
  const took = row.end === null ? "" : durationText(row.end - row.start);
  return html`<details class="call" open=${isOpen} onToggle=${(/** @type {any} */ it) => setOpen(it.target.open)}>
      <summary>
        <span class=${row.how}>${mark}</span> <code>${row.name}</code> ${row.note} <small>${row.step && `step ${row.step} · `}${took}</small>${" "}
        ${row.outcome?.error && html`<span class="bad">${row.outcome.error.kind}: ${brief(row.outcome.error.message)}</span>`}
      </summary>
      ${isOpen && html`<${CallFacts} row=${row} runId=${runId} level=${3} />`}
    </details>
    <${Files} runId=${runId} files=${row.outcome?.media} />`;
}

/** @param {{ row: any, runId: string, level?: number }} props `level`: of its headings, for a screen reader. */
export function CallFacts({ row, runId, level = 4 }) {
  const { outcome, verdict } = row;
  const isLarge = outcome?.result?.artifact_path;
  return html`<h4 aria-level=${level}>arguments</h4>
    <${Value} value=${row.args} label="arguments" />
    ${verdict && html`<p class="rule">${words(verdict.verdict)}${verdict.rule && ` by ${verdict.rule}`}${verdict.reason && `: ${verdict.reason}`}</p>`}
    ${outcome && html`<h4 aria-level=${level}>${outcome.error ? "error" : "result"}</h4>`}
    ${outcome?.error && html`<p class="bad">${outcome.error.kind}: ${outcome.error.message}</p>`}
    ${outcome && !outcome.error && html`<${Value} value=${outcome.result} label="result" />`}
    ${isLarge && html`<${Files} runId=${runId} files=${[{ path: isLarge, bytes: outcome.result.bytes }]} />`}
    <${Files} runId=${runId} files=${outcome?.artifacts?.map((/** @type {string} */ path) => ({ path }))} />`;
}

/** All calls, with who or what let each be made. @param {{ course: import("./course.js").Course, choose: (key: string) => void }} props */
export function CallTable({ course, choose }) {
  const calls = course.rows.filter((row) => row.kind === "call");
  if (!calls.length) return html`<p class="quiet">No call was made yet.</p>`;
  /** @type {Map<string, any>} */
  const asked = new Map(
    course.rows
      .filter((row) => row.kind === "wait" && row.toolUseId)
      .map((row) => [row.toolUseId ?? "", row]),
  );
  return html`<div class="table-box" role="region" aria-label="calls" tabindex="0">
    <table>
      <thead>
        <tr>
          ${["step", "tool", "arguments", "outcome", "took", "decided by"].map((name) => html`<th scope="col">${name}</th>`)}
        </tr>
      </thead>
      <tbody>
        ${calls.slice(-MOST_CALLS).map((row) => {
          const wait = asked.get(row.toolUseId ?? "");
          return html`<tr key=${row.key}>
            <td>${row.step ?? ""}</td>
            <td>
              <button type="button" class="plain" onClick=${() => choose(row.key)}><code>${row.name}</code></button>
            </td>
            <td>${row.note}</td>
            <td class=${row.how === "bad" ? "bad" : ""}>${outcomeText(row)}</td>
            <td>${row.end === null ? "…" : durationText(row.end - row.start)}</td>
            <td>${approvalText(row, wait)}</td>
          </tr>`;
        })}
      </tbody>
    </table>
    ${calls.length > MOST_CALLS && html`<p class="quiet">The latest ${MOST_CALLS} of ${calls.length.toLocaleString()}; the timeline has all.</p>`}
  </div>`;
}

const MOST_CALLS = 60; // rows of the table; it stays below 500 elements

/** @param {any} row */
function outcomeText(row) {
  if (row.outcome?.error)
    return `${row.outcome.error.kind}: ${brief(row.outcome.error.message, 80)}`;
  return row.outcome ? brief(row.outcome.result ?? "ok", 80) : "…";
}

/** @param {any} row @param {any} wait */
function approvalText(row, wait) {
  const rule = row.verdict
    ? `${words(row.verdict.verdict)}${row.verdict.rule ? ` by ${row.verdict.rule}` : ""}`
    : "";
  const people = (wait?.answers ?? []).map(answerText).join("; ") || wait?.ending || "";
  return [rule, people].filter(Boolean).join("; ");
}

/** A turn of the model, whole. @param {{ row: any }} props */
export function TurnFacts({ row }) {
  if (!row.reply) return html`<p class="quiet">The model is at it.</p>`;
  const { reply } = row;
  const calls = reply.content.filter((/** @type {any} */ block) => block.type === "tool_use");
  return html`<dl class="facts">
      <dt>model</dt>
      <dd>${reply.model}</dd>
      <dt>tokens</dt>
      <dd>${tokensText(reply.usage)}, ${reply.usage.cache_read.toLocaleString()} cached</dd>
      ${reply.cost_usd !== null && html`<dt>cost</dt><dd>${costText(reply.cost_usd)}</dd>`}
      <dt>ended with</dt>
      <dd>${words(reply.stop_reason ?? "")}</dd>
    </dl>
    <${Thought} content=${reply.content} />
    <${LongText} text=${textOf(reply.content) || "(no text)"} label="reply" />
    ${calls.map((/** @type {any} */ use) => html`<p>calls <code>${use.name}</code></p><${Value} value=${use.input} label="arguments" />`)}`;
}
