/** What all modules share: the view library, requests, the session, and what the page looks at again and again. */

import { h, render } from "./vendor/preact.mjs";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.mjs";
import htm from "./vendor/htm.mjs";

export const html = htm.bind(h);
export { render, useEffect, useLayoutEffect, useMemo, useRef, useState };

/**
 * @typedef {Object} Session Who is signed in.
 * @property {string} name The token's name, or the person that a proxy names.
 * @property {string[]} scopes
 */

/** A request that was refused. `status` is HTTP's, or 0 without an answer. */
export class Refused extends Error {
  /** @param {number} status @param {string} message */
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** @type {Set<() => void>} */
const signedOut = new Set();

/**
 * Call `hear` when a request finds that the session has ended. Returns what stops it.
 * @param {() => void} hear
 */
export function onSignedOut(hear) {
  signedOut.add(hear);
  return () => void signedOut.delete(hear);
}

/**
 * Send a request and return the JSON of its answer. Raises Refused.
 * @param {string} path From the gateway's root, without a leading slash.
 * @param {{ method?: string, body?: any, file?: Blob, key?: string, signal?: AbortSignal }} [how]
 * @returns {Promise<any>}
 */
export async function request(path, how = {}) {
  /** @type {Record<string, string>} */
  const headers = { "X-Perdure": "1" }; // a page of another origin cannot send it
  if (how.key) headers["Idempotency-Key"] = how.key;
  if (how.body !== undefined) headers["Content-Type"] = "application/json";
  const body = how.file ?? (how.body === undefined ? undefined : JSON.stringify(how.body));
  const method = how.method ?? (body === undefined ? "GET" : "POST");
  let answer;
  try {
    answer = await fetch(path, { method, headers, body, signal: how.signal });
  } catch (error) {
    if (how.signal?.aborted) throw error;
    throw new Refused(0, "the gateway does not answer; the page tries again");
  }
  const text = await answer.text();
  const value =
    text && answer.headers.get("Content-Type")?.includes("json") ? JSON.parse(text) : text;
  if (answer.ok) return value;
  if (answer.status === 401) for (const hear of signedOut) hear();
  throw new Refused(answer.status, value?.detail || `the gateway answered ${answer.status}`);
}

/** @param {string} id @param {string} [rest] */
export const runPath = (id, rest = "") => `v1/runs/${encodeURIComponent(id)}${rest}`;

const EVERY = 8000; // milliseconds between looks; the gateway's lists are up to 2 s old

/** @type {Set<() => void>} */
const lookers = new Set();

/** Look again now: something was changed here. */
export function lookAgain() {
  for (const look of lookers) look();
}

/** Call `look` at each `lookAgain`. Returns what stops it. @param {() => void} look */
export function onLookAgain(look) {
  lookers.add(look);
  return () => void lookers.delete(look);
}

/**
 * Look at a list now, every 8 seconds while the page is visible, and after `lookAgain`. What was seen last stays while a
 * look fails. A `path` that is null is not looked at; with `once`, a look that succeeds is the last by itself.
 * @param {string | null} path
 * @param {{ once?: boolean }} [how]
 * @returns {{ value: any, error: Refused | null }}
 */
export function useLook(path, { once = false } = {}) {
  const [seen, setSeen] = useState(
    /** @type {any} */ ({ path: null, value: undefined, error: null }),
  );
  useEffect(() => {
    if (path === null) return undefined;
    const stop = new AbortController();
    let isLooking = false;
    let isDone = false;
    const look = async () => {
      if (document.hidden || isLooking || isDone) return;
      isLooking = true;
      try {
        const value = await request(path, { signal: stop.signal });
        isDone = once;
        setSeen((/** @type {any} */ before) =>
          isSame(before, path, value) ? before : { path, value, error: null },
        );
      } catch (error) {
        if (!stop.signal.aborted)
          setSeen((/** @type {any} */ before) => failed(before, path, error));
      }
      isLooking = false;
    };
    look();
    const timer = setInterval(look, EVERY);
    lookers.add(look);
    document.addEventListener("visibilitychange", look);
    return () => {
      stop.abort();
      clearInterval(timer);
      lookers.delete(look);
      document.removeEventListener("visibilitychange", look);
    };
  }, [path, once]);
  return seen.path === path ? seen : { value: undefined, error: null };
}

/** @param {any} before @param {string} path @param {any} value */
function isSame(before, path, value) {
  return (
    before.path === path && !before.error && JSON.stringify(before.value) === JSON.stringify(value)
  );
}

/** @param {any} before @param {string} path @param {unknown} error */
function failed(before, path, error) {
  return { path, value: before.path === path ? before.value : undefined, error };
}

/**
 * The time, every `seconds`, for ages.
 * @param {number} [seconds]
 * @returns {number} Milliseconds.
 */
export function useNow(seconds = 10) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => !document.hidden && setNow(Date.now()), seconds * 1000);
    return () => clearInterval(timer);
  }, [seconds]);
  return now;
}

/**
 * What an action is doing: run it by `act`, which shows its error in place of raising it.
 * @returns {{ busy: boolean, error: string, act: (action: () => Promise<any>) => Promise<boolean> }}
 */
export function useAction() {
  const [state, setState] = useState({ busy: false, error: "" });
  const isShown = useRef(true);
  useEffect(() => () => void (isShown.current = false), []);
  const show = (/** @type {any} */ now) => isShown.current && setState(now);
  return {
    ...state,
    act: async (action) => {
      show({ busy: true, error: "" });
      try {
        await action();
        show({ busy: false, error: "" });
        return true;
      } catch (error) {
        show({ busy: false, error: error instanceof Error ? error.message : String(error) });
        return false;
      }
    },
  };
}

/** The place that the address names: a screen and what it shows. A hash without a slash is a run's id. */
export function usePlace() {
  const [place, setPlace] = useState(readPlace());
  useEffect(() => {
    const hear = () => setPlace(readPlace());
    addEventListener("hashchange", hear);
    return () => removeEventListener("hashchange", hear);
  }, []);
  return place;
}

function readPlace() {
  const [path, query = ""] = location.hash.slice(1).split("?");
  const isRun = path && !decodeURIComponent(path).startsWith("question:");
  const parts = path.startsWith("/") ? path.slice(1).split("/") : isRun ? ["run", path] : ["now"];
  const [screen, id = "", tab = ""] = parts.map(decodeURIComponent);
  return { screen, id, tab, query: new URLSearchParams(query) };
}

/** @param {string} screen @param {string[]} parts */
export const placeOf = (screen, ...parts) =>
  `#/${[screen, ...parts].map(encodeURIComponent).join("/")}`;
