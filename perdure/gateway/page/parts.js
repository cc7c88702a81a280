/** Small parts that every screen is made of: times, states, values, differences, files, long lists. */

import {
  html,
  placeOf,
  runPath,
  useLayoutEffect,
  useMemo,
  useNow,
  useRef,
  useState,
} from "./base.js";

const CLOCK = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const DAY = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" });
const WHOLE = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });

/** @param {number} ms @returns {string} "850 ms", "4.2 s", "3 min", "5 h 20 min", "2 d 4 h" */
export function durationText(ms) {
  const seconds = Math.max(ms, 0) / 1000;
  if (seconds < 0.95) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 59.5) return `${seconds < 9.95 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const [large, small, names] =
    minutes < 24 * 60
      ? [Math.floor(minutes / 60), minutes % 60, ["h", "min"]]
      : [Math.floor(minutes / 1440), Math.floor((minutes % 1440) / 60), ["d", "h"]];
  return `${large} ${names[0]}${small ? ` ${small} ${names[1]}` : ""}`;
}

/** A time of today as a clock's, another with its day; all of it on hover. @param {{ at: string | number }} props */
export function Time({ at }) {
  const date = new Date(at);
  const isToday = date.toDateString() === new Date().toDateString();
  const text = isToday ? CLOCK.format(date) : `${DAY.format(date)}, ${CLOCK.format(date)}`;
  return html`<time datetime=${date.toISOString()} title=${WHOLE.format(date)}>${text}</time>`;
}

/** How long ago it was, or how long it is until then. @param {{ at: string | number }} props */
export function Ago({ at }) {
  const date = new Date(at);
  const ms = useNow() - date.getTime();
  const text = ms >= 0 ? `${durationText(Math.max(ms, 1000))} ago` : `in ${durationText(-ms)}`;
  return html`<time datetime=${date.toISOString()} title=${WHOLE.format(date)}>${text}</time>`;
}

/** @type {Record<string, string>} */
const MOODS = {
  completed: "good",
  failed: "bad",
  timed_out: "bad",
  escalated: "asks",
  waiting_on_human: "asks",
  waiting_on_tool: "waits",
  cancelled: "quiet",
  queued: "quiet",
};

/** @param {string} text */
export const words = (text) => text.replaceAll("_", " ");

/**
 * The state of a run, in words and a colour.
 * @param {{ run: { status: string, dry_run?: boolean, subtasks_failed?: boolean, wedged?: boolean, held?: boolean } }} props
 */
export function Status({ run }) {
  const more = run.subtasks_failed ? ", subtasks failed" : "";
  return html`<span class="state ${MOODS[run.status] ?? "works"}"
      >${run.dry_run ? "dry run, " : ""}${words(run.status)}${more}</span
    >${run.held && html` <span class="state waits">held</span>`}${run.wedged && html` <span class="state bad">wedged</span>`}`;
}

/** @param {{ id: string, children?: any }} props */
export const RunLink = ({ id, children }) =>
  html`<a class="id" href=${placeOf("run", id)}>${children ?? id}</a>`;

/** @param {number | null | undefined} usd */
export const costText = (usd) =>
  usd === null || usd === undefined
    ? ""
    : `$${usd > 0 && usd < 0.01 ? usd.toFixed(4) : usd.toFixed(2)}`;

/** @param {number} bytes */
export function sizeText(bytes) {
  if (bytes < 1000) return `${bytes} bytes`;
  const [unit, name] = bytes >= 1e6 ? [1e6, "MB"] : [1e3, "kB"];
  return `${(bytes / unit).toFixed(bytes >= 10 * unit ? 0 : 1)} ${name}`;
}

/** @param {number} count @param {string} name */
export const countText = (count, name) =>
  `${count.toLocaleString()} ${name}${count === 1 ? "" : "s"}`;

const LONG = 1500; // characters of a text that is shown unfolded

/** A text; the rest of a long one on demand. @param {{ text: string, label?: string }} props */
export function LongText({ text, label = "text" }) {
  const [isWhole, setWhole] = useState(false);
  if (text.length <= LONG || isWhole)
    return html`<pre tabindex="0" aria-label=${label}>${text}</pre>`;
  const rest = (text.length - LONG).toLocaleString();
  return html`<pre tabindex="0" aria-label=${label}>${text.slice(0, LONG)} …</pre>
    <button type="button" class="plain" onClick=${() => setWhole(true)}>show ${rest} more characters</button>`;
}

/** A value as a person reads it: fields in a list, texts as texts, the rest as JSON. @param {{ value: any, label?: string }} props */
export function Value({ value, label = "value" }) {
  if (typeof value === "string") return html`<${LongText} text=${value} label=${label} />`;
  if (value === null || value === undefined || typeof value !== "object")
    return html`<code>${JSON.stringify(value) ?? "none"}</code>`;
  if (Array.isArray(value) || !Object.keys(value).length || Object.keys(value).length > 40) {
    return html`<${LongText} text=${JSON.stringify(value, null, 2)} label=${label} />`;
  }
  return html`<dl class="fields">
    ${Object.entries(value).map(
      ([name, field]) =>
        html`<dt>${words(name)}</dt>
          <dd><${Field} name=${name} value=${field} /></dd>`,
    )}
  </dl>`;
}

/** @param {{ name: string, value: any }} props */
function Field({ name, value }) {
  const isShort = typeof value === "string" && value.length <= 120 && !value.includes("\n");
  if (isShort) return html`<span>${value}</span>`;
  return html`<${Value} value=${value} label=${words(name)} />`;
}

/** The first part of a value, in a line. @param {any} value @param {number} [length] */
export function brief(value, length = 160) {
  const text = typeof value === "string" ? value : (JSON.stringify(value) ?? "");
  const line = text
    .slice(0, 4 * length)
    .replace(/\s+/g, " ")
    .trim();
  return line.length > length ? `${line.slice(0, length)} …` : line;
}

/** The arguments of a call in a line: their values, the short ones. @param {any} args */
export function briefArguments(args) {
  if (!args || typeof args !== "object") return "";
  return brief(
    Object.entries(args)
      .map(
        ([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`,
      )
      .join(", "),
  );
}

const MOST_LINES = 400; // of a difference; longer texts are shown one after the other

/**
 * The lines of two texts: those removed, added and kept, by the longest common subsequence.
 * @param {string} before @param {string} after
 * @returns {{ sign: string, text: string }[]}
 */
export function differenceOf(before, after) {
  const [old, now] = [before.split("\n"), after.split("\n")];
  if (old.length > MOST_LINES || now.length > MOST_LINES) {
    return [
      ...old.map((text) => ({ sign: "-", text })),
      ...now.map((text) => ({ sign: "+", text })),
    ];
  }
  const common = Array.from({ length: old.length + 1 }, () => new Uint16Array(now.length + 1));
  for (let i = old.length - 1; i >= 0; i--) {
    for (let j = now.length - 1; j >= 0; j--) {
      common[i][j] =
        old[i] === now[j] ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
    }
  }
  const lines = [];
  let [i, j] = [0, 0];
  while (i < old.length || j < now.length) {
    if (i < old.length && j < now.length && old[i] === now[j]) {
      lines.push({ sign: " ", text: old[i] });
      i++;
      j++;
    } else if (j >= now.length || (i < old.length && common[i + 1][j] >= common[i][j + 1])) {
      lines.push({ sign: "-", text: old[i++] });
    } else {
      lines.push({ sign: "+", text: now[j++] });
    }
  }
  return lines;
}

/** @param {{ before: string, after: string }} props */
export function Difference({ before, after }) {
  const lines = useMemo(() => differenceOf(before, after), [before, after]);
  const classes = { "-": "gone", "+": "new", " ": "" };
  return html`<pre class="difference" tabindex="0" aria-label="difference">
${lines.map(({ sign, text }) => html`<span class=${classes[/** @type {" "} */ (sign)]}>${sign} ${text}${"\n"}</span>`)}</pre
  >`;
}

/**
 * Files of a run: images as they are, others by name. Each has a `sha256`, or a `path` below the run.
 * @param {{ runId: string, files: { name?: string, path?: string, sha256?: string, media_type?: string, content_type?: string, bytes?: number }[] }} props
 */
export function Files({ runId, files }) {
  if (!files?.length) return null;
  return html`<ul class="files">
    ${files.map((file) => html`<li key=${file.path ?? file.sha256}><${File} runId=${runId} file=${file} /></li>`)}
  </ul>`;
}

const ATTEMPTS = 6; // over half a minute: a run that has just begun stores what was attached to it

/** @param {{ runId: string, file: any }} props */
function File({ runId, file }) {
  const [attempt, setAttempt] = useState(0);
  const again = () =>
    attempt < ATTEMPTS && setTimeout(() => setAttempt(attempt + 1), 500 * 2 ** attempt);
  const name = file.name || file.path?.split("/").pop() || "file";
  const isArtifact = file.path?.startsWith("artifacts/");
  const rest = isArtifact
    ? `/${file.path.split("/").map(encodeURIComponent).join("/")}`
    : `/media/${file.sha256}`;
  const type = file.media_type ?? file.content_type ?? "";
  const size = file.bytes === undefined ? "" : sizeText(file.bytes);
  const label = html`<span>${name} <small>${size}</small></span>`;
  if (!file.sha256 && !isArtifact) return label;
  const address = runPath(runId, rest);
  if (!type.startsWith("image/"))
    return html`<a href=${address} target="_blank" rel="noreferrer">${label}</a>`;
  return html`<a href=${address} target="_blank" rel="noreferrer">
    <img key=${attempt} src=${address} alt=${name} loading="lazy" onError=${again} />${label}
  </a>`;
}

const MARGIN = 300; // pixels above and below what is seen that are drawn

/**
 * A long list of which only what is seen is drawn. Rows may differ in height: one that was not drawn yet counts `guess`
 * pixels. With `follows`, a reader at its end stays at the end as it grows.
 * @param {{ items: any[], row: (item: any, index: number) => any, keyOf: (item: any) => string, guess: number, label: string, follows?: boolean, role?: string, class?: string }} props
 */
export function LongList({
  items,
  row,
  keyOf,
  guess,
  label,
  follows = false,
  role = "list",
  class: name = "",
}) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const heights = useRef(/** @type {Map<string, number>} */ (new Map()));
  const isAtEnd = useRef(true);
  const drawn = useRef(/** @type {Map<string, { item: any, row: any, node: any }>} */ (new Map()));
  const measured = useRef(0); // times that heights have changed
  const [view, setView] = useState({ top: 0, height: 800 });
  const tops = useMemo(() => {
    const sums = [0];
    for (const item of items)
      sums.push(sums[sums.length - 1] + (heights.current.get(keyOf(item)) ?? guess));
    return sums;
  }, [items, items.length, measured.current]);
  const first = Math.max(lastAtMost(tops, view.top - MARGIN), 0);
  const last = Math.min(lastAtMost(tops, view.top + view.height + MARGIN) + 1, items.length);
  /** @type {typeof drawn.current} */ const rows = new Map(); // while the list scrolls, a row that stays is not drawn anew
  items.slice(first, last).forEach((item, n) => {
    const key = keyOf(item);
    const kept = drawn.current.get(key);
    if (kept && kept.item === item && kept.row === row) rows.set(key, kept);
    else rows.set(key, { item, row, node: rowOf(key, row(item, first + n), role) });
  });
  drawn.current = rows;
  const look = () => {
    if (!box.current) return; // the last scroll of a list that is gone
    const { scrollTop, clientHeight, scrollHeight } = box.current;
    isAtEnd.current = scrollHeight - scrollTop - clientHeight < 40;
    if (Math.abs(scrollTop - view.top) > MARGIN / 4 || clientHeight !== view.height) {
      setView({ top: scrollTop, height: clientHeight });
    }
  };
  useLayoutEffect(() => {
    const node = /** @type {HTMLElement} */ (box.current);
    let isChanged = false;
    let bottom = tops[first];
    for (const child of /** @type {Iterable<HTMLElement>} */ (
      node.querySelectorAll(":scope > .row")
    )) {
      const [key, height] = [child.dataset.key ?? "", child.offsetHeight];
      isChanged ||= heights.current.get(key) !== height;
      heights.current.set(key, height);
      bottom += height;
    }
    if (isChanged) measured.current++;
    if (follows && isAtEnd.current) node.scrollTop = node.scrollHeight;
    const isShort = last < items.length && bottom < node.scrollTop + node.clientHeight + MARGIN / 2;
    if (node.clientHeight > view.height || (isChanged && isShort))
      setView({ top: node.scrollTop, height: node.clientHeight });
  });
  return html`<div class="long ${name}" ref=${box} onScroll=${look} tabindex="0" role=${role} aria-label=${label}>
    <div style=${{ height: `${tops[first]}px` }} aria-hidden="true"></div>
    ${[...rows.values()].map(({ node }) => node)}
    <div style=${{ height: `${tops[items.length] - tops[last]}px` }} aria-hidden="true"></div>
  </div>`;
}

/** @param {string} key @param {any} content @param {string} role Of the list. */
const rowOf = (key, content, role) =>
  html`<div class="row" key=${key} data-key=${key} role=${role === "list" ? "listitem" : "row"}>${content}</div>`;

/** @param {number[]} sorted @param {number} value The place of the last that is not larger; -1 if there is none. */
export function lastAtMost(sorted, value) {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** An error of an action or a look. It is announced. @param {{ text?: string }} props */
export const Failure = ({ text }) =>
  html`<p class="failure" role="alert" hidden=${!text}>${text}</p>`;

/** A button that asks once more before it acts. @param {{ label: string, sure: string, onSure: () => void, disabled?: boolean }} props */
export function SureButton({ label, sure, onSure, disabled = false }) {
  const [asks, setAsks] = useState(false);
  if (!asks) {
    return html`<button type="button" disabled=${disabled} onClick=${() => setAsks(true)}>${label}</button>`;
  }
  const close = () => setAsks(false);
  return html`<span class="sure" role="group" aria-label=${sure}>
    <button type="button" class="danger" ref=${focus} onClick=${() => (close(), onSure())}>${sure}</button>
    <button type="button" onClick=${close}>no</button>
  </span>`;
}

/** @param {HTMLElement | null} node */
export const focus = (node) => void node?.focus();
