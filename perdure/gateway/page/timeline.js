/**
 * A run as time: a bar for each turn, call and wait. Waits are hatched, stretches without work are shortened and marked,
 * and the keyboard zooms. A wait of days stands beside calls of milliseconds.
 */

import { html, useMemo, useNow, useRef, useState } from "./base.js";
import { scaleOf, Took } from "./course.js";
import { countText, durationText, LongList, RunLink, Time, words } from "./parts.js";

const ROW = 30; // pixels; the style sheet has the same
const WHOLE = { from: 0, to: 1 };
const NARROWEST = 1e-6; // of the whole, that fills the screen

/**
 * @param {{ course: import("./course.js").Course, subtasks: any[], chosen: string, choose: (key: string) => void }} props
 */
export function Timeline({ course, subtasks, chosen, choose }) {
  const isOpen = course.rows.some((row) => row.end === null);
  const now = useNow(isOpen ? 1 : 60);
  const [view, setView] = useState(WHOLE);
  const items = useMemo(() => nest(course.rows, subtasks), [course.version, subtasks]);
  const scale = useMemo(() => scaleOf(items, now), [course.version, items, isOpen && now]);
  const zoom = useZoom(view, setView);
  if (!items.length) return html`<p class="quiet">Nothing has happened yet.</p>`;
  const shown = (/** @type {number} */ place) => (place - view.from) / (view.to - view.from);
  const pattern = breakPattern(scale.breaks, shown);
  return html`<section class="timeline" aria-label="timeline" onKeyDown=${zoom.onKey}>
    <${Axis} scale=${scale} view=${view} shown=${shown} zoom=${zoom} />
    <${LongList}
      items=${items}
      guess=${ROW}
      label="turns, calls and waits"
      follows=${isOpen}
      keyOf=${(/** @type {any} */ row) => row.key}
      row=${(/** @type {any} */ row) =>
        html`<${Bar} row=${row} now=${now} ...${{ scale, shown, pattern, choose }} isChosen=${row.key === chosen} />`}
    />
  </section>`;
}

/**
 * Put the runs of subtasks, and theirs, below the row that started them.
 * @param {import("./course.js").Row[]} rows @param {any[]} subtasks As of a run's details: each after its parent.
 * @returns {any[]}
 */
function nest(rows, subtasks) {
  const known = new Set(
    rows.filter((row) => row.delegation).flatMap((row) => Object.values(row.delegation.runs)),
  );
  /** @type {Map<string, any[]>} */ const below = new Map();
  let top = "";
  for (const run of subtasks) {
    if (run.depth === 1) top = run.run_id;
    below.set(top, [...(below.get(top) ?? []), run]);
  }
  const nested = rows.flatMap((row) => {
    const runs = Object.values(row.delegation?.runs ?? {}).flatMap(
      (id) => below.get(/** @type {string} */ (id)) ?? [],
    );
    return [row, ...runs.map(subtaskRow)];
  });
  const others = [...below]
    .filter(([id]) => !known.has(id))
    .flatMap(([, runs]) => runs.map(subtaskRow));
  return [...nested, ...others];
}

/** @param {any} run */
function subtaskRow(run) {
  const end = run.closed_at ? Date.parse(run.closed_at) : null;
  const how = end === null ? "open" : run.status === "completed" ? "good" : "bad";
  return {
    key: run.run_id,
    kind: "run",
    name: run.agent,
    run,
    start: Date.parse(run.started_at),
    end,
    how,
  };
}

/** @param {any} props */
function Bar({ row, now, scale, shown, pattern, choose, isChosen }) {
  const end = row.end ?? now;
  const span = (/** @type {number} */ start, /** @type {number} */ stop) => {
    const [from, to] = [start, stop].map((at) => 100 * shown(scale.place(at)));
    const left = Math.min(Math.max(from, -1), 101);
    return { left: `${left}%`, width: `${Math.max(Math.min(to, 101) - left, 0.25)}%` };
  };
  const says = row.run ? `${words(row.run.status)}` : row.note;
  const style = row.run ? { paddingLeft: `${row.run.depth}rem` } : {};
  const name = row.run ? html`<${RunLink} id=${row.run.run_id}>${row.name}<//>` : row.name;
  const label = `${row.name}: ${says}, ${durationText(end - row.start)}${row.end === null ? " so far" : ""}`;
  return html`<div class=${`bar-row ${row.kind}${isChosen ? " chosen" : ""}`}>
    <span class="what" style=${style} title=${says}>${name} <small>${says}</small></span>
    <button
      type="button"
      class="track"
      aria-label=${label}
      aria-pressed=${isChosen}
      style=${pattern}
      onClick=${() => choose(isChosen ? "" : row.key)}
    >
      <span class=${`bar ${row.kind} ${row.how}`} style=${span(row.start, row.worked ?? end)}></span>
      ${row.worked && html`<span class=${`bar wait ${row.how}`} style=${span(row.worked, end)}></span>`}
      ${row.retries?.map(
        (/** @type {any} */ retry) => html`<span
            class="retry"
            title=${retry.text}
            style=${{ left: `${100 * shown(scale.place(retry.at))}%` }}
          ></span>`,
      )}
    </button>
    <${Took} row=${row} now=${now} />
  </div>`;
}

/** Shortened stretches as stripes behind all bars: one background, no elements. */
function breakPattern(/** @type {any[]} */ breaks, /** @type {(place: number) => number} */ shown) {
  const seen = breaks
    .map(({ from, to }) => [100 * shown(from), 100 * shown(to)])
    .filter(([from, to]) => to > 0 && from < 100);
  if (!seen.length || seen.length > 60) return {};
  const stops = seen.flatMap(([from, to]) => [
    `transparent ${from}%`,
    `var(--gap) ${from}%`,
    `var(--gap) ${to}%`,
    `transparent ${to}%`,
  ]);
  return { backgroundImage: `linear-gradient(to right, ${stops.join(", ")})` };
}

const MOST_LABELS = 8;
const LABEL = 0.08; // of the width, that a label of the axis takes

/** @param {any} props */
function Axis({ scale, view, shown, zoom }) {
  const seen = [...scale.breaks]
    .filter((each) => shown(each.to) > 0 && shown(each.from) < 1)
    .sort((a, b) => b.ms - a.ms);
  /** @type {{ ms: number, middle: number }[]} */ const breaks = [];
  for (const { ms, from, to } of seen) {
    const middle = (shown(from) + shown(to)) / 2;
    const isFree = breaks.every((each) => Math.abs(each.middle - middle) > LABEL);
    if (isFree && breaks.length < MOST_LABELS) breaks.push({ ms, middle });
  }
  const [from, to] = [view.from, view.to].map(scale.timeAt);
  return html`<div class="zoom" role="group" aria-label="zoom">
      <button type="button" title="wider (-)" aria-label="zoom out" onClick=${zoom.out}>−</button>
      <button type="button" title="all of it (0)" aria-label="show all" onClick=${zoom.all}>all</button>
      <button type="button" title="closer (+)" aria-label="zoom in" onClick=${zoom.in}>+</button>
    </div>
    <div class="axis">
    <span class="what"><${Time} at=${from} /></span>
    <span class="labels">
      ${breaks.map(
        ({ ms, middle }) =>
          html`<small class="gap" style=${{ left: `${Math.min(Math.max(100 * middle, 2), 96)}%` }} title="shortened: nothing ran"
          >// ${durationText(ms)}</small
        >`,
      )}
    </span>
    <span class="took"><${Time} at=${to} /></span>
  </div>`;
}

/** @param {{ from: number, to: number }} view @param {(view: { from: number, to: number }) => void} setView */
function useZoom(view, setView) {
  const latest = useRef(view);
  latest.current = view;
  const by = (/** @type {number} */ factor, /** @type {number} */ shift = 0) => {
    const { from, to } = latest.current;
    const width = Math.min(Math.max((to - from) * factor, NARROWEST), 1);
    const middle = (from + to) / 2 + shift * (to - from);
    const start = Math.min(Math.max(middle - width / 2, 0), 1 - width);
    setView({ from: start, to: start + width });
  };
  const keys = {
    "+": () => by(0.5),
    "=": () => by(0.5),
    "-": () => by(2),
    0: () => setView(WHOLE),
    ArrowLeft: () => by(1, -0.25),
    ArrowRight: () => by(1, 0.25),
  };
  return {
    in: () => by(0.5),
    out: () => by(2),
    all: () => setView(WHOLE),
    onKey: (/** @type {KeyboardEvent} */ event) => {
      const act =
        event.ctrlKey || event.metaKey || event.altKey
          ? undefined
          : keys[/** @type {"+"} */ (event.key)];
      if (!act) return;
      event.preventDefault();
      act();
    },
  };
}

/** What a row holds, below the timeline. @param {{ row: any, runId: string, children?: any }} props */
export function RowFacts({ row }) {
  return html`<dl class="facts">
    <dt>from</dt>
    <dd><${Time} at=${row.start} /></dd>
    ${
      row.end !== null &&
      html`<dt>to</dt>
      <dd><${Time} at=${row.end} /> (${durationText(row.end - row.start)})</dd>`
    }
    ${row.step && html`<dt>step</dt><dd>${row.step}</dd>`}
    ${
      row.retries &&
      html`<dt>retries</dt>
      <dd>${countText(row.retries.length, "retry").replace("retrys", "retries")}: ${row.retries.map((/** @type {any} */ retry) => retry.text).join("; ")}</dd>`
    }
  </dl>`;
}
