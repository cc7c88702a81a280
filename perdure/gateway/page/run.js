/** One run: what it is for, how it stands, what can be done, its questions, and its course as time or as conversation. */

import {
  html,
  lookAgain,
  onLookAgain,
  placeOf,
  request,
  runPath,
  useAction,
  useEffect,
  useRef,
  useState,
} from "./base.js";
import { Took, useCourse } from "./course.js";
import {
  Ago,
  brief,
  costText,
  countText,
  durationText,
  Failure,
  Files,
  RunLink,
  Status,
  SureButton,
  Time,
  Value,
  words,
} from "./parts.js";
import { About, Arguments, QuestionList } from "./question.js";
import { CallFacts, CallTable, Conversation, Subtasks, TurnFacts } from "./talk.js";
import { RowFacts, Timeline } from "./timeline.js";

const TABS = { time: "Time", talk: "Conversation", calls: "Calls", files: "Files" };

/** @param {{ id: string, tab: string, can: (scope: string) => boolean, tools: Map<string, any>, webUi: string | null, namespace: string }} props */
export function RunScreen({ id, tab, can, tools, webUi, namespace }) {
  const { course, lost } = useCourse(id);
  const moves = course.rows.length;
  const waits = course.rows.filter((each) => each.kind === "wait");
  const turn = `${waits.length} ${waits.filter((each) => each.end === null).length} ${course.end ? "ended" : ""}`;
  const { value: run, error } = useRun(id, moves, turn);
  const [chosen, choose] = useState("");
  useEffect(() => choose(""), [id]);
  if (error && !run && !course.started)
    return html`<h2>${id}</h2><${Failure} text=${error.message} />`;
  const known = run?.known ?? { status: "", agent: "" };
  const state = run?.state;
  const open = known.closed_at ? [] : (state?.questions ?? []);
  const asked = open.map((/** @type {any} */ question) => ({
    run_id: id,
    agent: known.agent,
    question,
    started_at: known.started_at,
    goal: null,
  }));
  const shown = tab in TABS ? tab : "time";
  const row = course.rows.find((each) => each.key === chosen);
  return html`<section class="run" aria-labelledby="run-title">
    <${Header} ...${{ id, run, course, webUi, namespace }} />
    <${Actions} ...${{ id, run, course, can }} />
    <p class="lost" role="status">${lost && !course.end ? "The stream is broken; the page tries to go on." : ""}</p>
    ${asked.length > 0 && html`<${QuestionList} questions=${asked} tools=${tools} canAnswer=${can("human:answer")} withRun=${false} />`}
    <${End} course=${course} run=${run} id=${id} can=${can} />
    <nav class="tabs" aria-label="views of the run">
      ${Object.entries(TABS).map(
        ([name, title]) =>
          html`<a href=${placeOf("run", id, name)} aria-current=${name === shown ? "page" : undefined}>${title}</a>`,
      )}
    </nav>
    ${shown === "time" && html`<${Timeline} course=${course} subtasks=${run?.subtasks ?? []} chosen=${chosen} choose=${choose} />`}
    ${shown === "talk" && html`<${Conversation} course=${course} runId=${id} isOpen=${Boolean(run) && !known.closed_at} />`}
    ${shown === "calls" && html`<${CallTable} course=${course} choose=${choose} />`}
    ${shown === "files" && html`<${RunFiles} id=${id} moves=${moves} course=${course} />`}
    ${row && (shown === "time" || shown === "calls") && html`<${Chosen} row=${row} runId=${id} choose=${choose} />`}
  </section>`;
}

const AGAIN = 10_000; // milliseconds until a run that moves is read again
const SHARED = 2500; // milliseconds: longer than the gateway gives several readers one answer

/**
 * Read a run: now, when it begins or ends to wait, at its end, and while its course moves every ten seconds. An answer
 * may be older than the event for which it was asked, so there is a second look.
 * @param {string} id @param {number} moves @param {string} turn Changes with its waits and its end.
 */
function useRun(id, moves, turn) {
  const [seen, setSeen] = useState(/** @type {any} */ ({ id: "" }));
  const [again, setAgain] = useState(0);
  const timer = useRef(0);
  useEffect(() => {
    const stop = new AbortController();
    const look = async () => {
      try {
        const value = await request(runPath(id, "?subtasks=true"), { signal: stop.signal });
        setSeen({ id, value, error: null });
      } catch (error) {
        if (stop.signal.aborted) return;
        const kept = (/** @type {any} */ before) => (before.id === id ? before.value : undefined);
        setSeen((/** @type {any} */ before) => ({ id, value: kept(before), error }));
        setTimeout(() => !stop.signal.aborted && setAgain(Date.now()), 2000);
      }
    };
    const looks = [100, SHARED].map((ms) => setTimeout(look, ms)); // several changes come together
    return () => {
      looks.forEach((each) => clearTimeout(each));
      stop.abort();
    };
  }, [id, turn, again]);
  useEffect(() => {
    timer.current ||= setTimeout(() => {
      timer.current = 0;
      setAgain(Date.now());
    }, AGAIN);
  }, [moves]);
  useEffect(() => () => clearTimeout(timer.current), []);
  useEffect(() => onLookAgain(() => setAgain(Date.now())), []);
  return seen.id === id ? seen : { value: undefined, error: null };
}

/** @param {any} props */
function Header({ id, run, course, webUi, namespace }) {
  const known = run?.known;
  const state = run?.state;
  const goal = course.started?.goal ?? state?.goal ?? "";
  const history =
    webUi && `${webUi}/namespaces/${namespace}/workflows/${encodeURIComponent(`run:${id}`)}`;
  const took =
    known &&
    (known.closed_at ? Date.parse(known.closed_at) : Date.now()) - Date.parse(known.started_at);
  /** @type {[string, any][]} */
  const facts = [
    ["agent", known?.agent],
    ["model", state?.model],
    [
      "began",
      known &&
        html`<${Time} at=${known.started_at} />, ${known.closed_at ? `took ${durationText(took)}` : html`<${Ago} at=${known.started_at} />`}`,
    ],
    [
      "steps",
      state && `${state.step} of ${state.max_steps}, ${countText(state.turns, "model turn")}`,
    ],
    [
      "tokens",
      state &&
        `${(state.usage.input + state.usage.cache_read + state.usage.cache_write).toLocaleString()} → ${state.usage.output.toLocaleString()}`,
    ],
    ["cost", state ? costOf(state) : costText(known?.cost_usd)],
    ["started by", starterText(run?.started_by)],
    [
      "turn of",
      known?.conversation &&
        html`<a href=${placeOf("conversation", known.conversation)}>${known.conversation}</a>`,
    ],
    ["part of", known?.parent && html`<${RunLink} id=${known.parent} />`],
    ["goes on from", state?.origin && html`<${RunLink} id=${state.origin} />`],
    [
      "history",
      history && html`<a href=${history} target="_blank" rel="noreferrer">Temporal's Web UI</a>`,
    ],
  ];
  return html`<header class="run-head">
    <h2 id="run-title" tabindex="-1">${brief(goal, 300) || id}</h2>
    <p>${known && html`<${Status} run=${known} /> `}<span class="id">${id}</span></p>
    ${run?.held_by && html`<p class="held">Held before ${words(run.held_by.activity)}: ${run.held_by.why}</p>`}
    ${known?.wedged && html`<p class="bad">It cannot go on: ${known.wedged_by}</p>`}
    ${run && !run.answered && !known.closed_at && html`<p class="quiet">No worker answers: this is the server's record, ${durationText(1000 * run.age_seconds)} old.</p>`}
    <dl class="facts">
      ${facts.filter(([, value]) => value).map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}
    </dl>
    ${goal.length > 300 && html`<details><summary>the whole goal</summary><pre>${goal}</pre></details>`}
    <${Files} runId=${id} files=${course.started?.attachments} />
    ${state?.plan && html`<details><summary>plan</summary><pre>${state.plan}</pre></details>`}
  </header>`;
}

/** @param {any} state */
function costOf(state) {
  if (state.cost_usd !== null) return costText(state.cost_usd);
  const models = Object.entries(state.unpriced ?? {}).map(
    ([model, tokens]) => `${Number(tokens).toLocaleString()} tokens of ${model}`,
  );
  return `${state.known_usd ? `${costText(state.known_usd)} and ` : ""}${models.join(", ") || "tokens"} without a price in [prices]`;
}

/** @param {any} sent */
const starterText = (sent) =>
  sent &&
  [
    sent.by ?? sent.sender?.token ?? sent.sender?.user,
    sent.sender?.door && `by ${sent.sender.door}`,
  ]
    .filter(Boolean)
    .join(", ");

/** What can be done with a run, by its state and the session's scopes. @param {any} props */
function Actions({ id, run, course, can }) {
  const { busy, error, act } = useAction();
  const [dialog, setDialog] = useState("");
  const known = run?.known;
  if (!known) return null;
  const isOpen = !known.closed_at && !course.end;
  const go = (/** @type {string} */ rest, /** @type {any} */ body) =>
    act(async () => {
      const answer = await request(runPath(id, rest), { body });
      setDialog("");
      lookAgain();
      if (answer.run_id && answer.run_id !== id) location.hash = placeOf("run", answer.run_id);
    });
  const rerun = () => {
    sessionStorage.setItem(
      "perdure-again",
      JSON.stringify({ goal: course.started?.goal ?? "", agent: known.agent }),
    );
    location.hash = placeOf("start");
  };
  return html`<div class="actions">
    ${isOpen && can("human:answer") && html`<${SureButton} label="Cancel" sure="cancel the run" disabled=${busy} onSure=${() => go("/cancel", {})} />`}
    ${isOpen && can("runs:start") && html`<button type="button" aria-expanded=${dialog === "steer"} onClick=${() => setDialog(dialog === "steer" ? "" : "steer")}>Tell it</button>`}
    ${!isOpen && run.state?.resumable && can("runs:start") && html`<button type="button" disabled=${busy} onClick=${() => go("/resume", {})}>Resume</button>`}
    ${!isOpen && can("runs:start") && html`<button type="button" aria-expanded=${dialog === "fork"} onClick=${() => setDialog(dialog === "fork" ? "" : "fork")}>Fork</button>`}
    ${can("runs:start") && html`<button type="button" onClick=${rerun}>Start again</button>`}
    <a class="button" href=${runPath(id, "/record")} download=${`${id}.json`}>Record</a>
    ${dialog === "steer" && html`<${TextForm} label="A message to the agent, for its next turn" button="Tell it" onText=${(/** @type {string} */ text) => go("/steer", { text })} busy=${busy} />`}
    ${dialog === "fork" && html`<${ForkForm} most=${run.state?.step ?? 0} busy=${busy} onFork=${(/** @type {any} */ body) => go("/fork", body)} />`}
    <${Failure} text=${error} />
  </div>`;
}

/** @param {{ label: string, button: string, onText: (text: string) => void, busy: boolean }} props */
function TextForm({ label, button, onText, busy }) {
  const [text, setText] = useState("");
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    if (text.trim()) onText(text.trim());
  };
  return html`<form class="say" onSubmit=${submit}>
    <textarea rows="2" aria-label=${label} placeholder=${label} value=${text} onInput=${(/** @type {any} */ it) => setText(it.target.value)}></textarea>
    <button class="first" disabled=${busy || !text.trim()}>${button}</button>
  </form>`;
}

/** @param {{ most: number, busy: boolean, onFork: (body: any) => void }} props */
function ForkForm({ most, busy, onFork }) {
  const [step, setStep] = useState(most);
  const [say, setSay] = useState("");
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    onFork({ step, ...(say.trim() ? { say: say.trim() } : {}) });
  };
  return html`<form class="say" onSubmit=${submit}>
    <label>after step <input type="number" min="0" max=${most} value=${step} onInput=${(/** @type {any} */ it) => setStep(it.target.valueAsNumber)} /></label>
    <input aria-label="a message to the fork" placeholder="a message (optional)" value=${say} onInput=${(/** @type {any} */ it) => setSay(it.target.value)} />
    <button class="first" disabled=${busy || Number.isNaN(step)}>Fork</button>
  </form>`;
}

/** How the run ended. @param {any} props */
function End({ course, run, id, can }) {
  const { end } = course;
  if (!end) return null;
  const payload = end.event?.payload;
  const text = payload?.outcome || payload?.detail || end.message || "";
  return html`<section class=${`end ${end.status}`} role="status">
    <h3>${payload?.dry_run ? "dry run, " : ""}${end.status.replaceAll("_", " ")}${run?.known?.subtasks_failed ? ", subtasks failed" : ""}${payload?.reason ? `: ${payload.reason}` : end.kind ? `: ${end.kind}` : ""}</h3>
    ${text && html`<pre>${text}</pre>`}
    ${payload && "result" in payload && html`<h4>result</h4><${Value} value=${payload.result} label="result" />`}
    ${(payload?.handoff || end.handoff) && html`<details><summary>handoff</summary><pre>${payload?.handoff || end.handoff}</pre></details>`}
    ${payload?.dry_run && html`<${DryCalls} id=${id} calls=${payload.dry_calls ?? []} can=${can} />`}
  </section>`;
}

/** The calls that a dry run did not make. Those that stay chosen are made by a real run without approval. @param {any} props */
function DryCalls({ id, calls, can }) {
  const [without, setWithout] = useState(/** @type {number[]} */ ([]));
  const { busy, error, act } = useAction();
  if (!calls.length) return html`<p>It would have made no other call.</p>`;
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    act(async () => {
      const { run_id } = await request(runPath(id, "/plan"), { body: { without } });
      location.hash = placeOf("run", run_id);
    });
  };
  return html`<form class="dry" onSubmit=${submit}>
    <h4>not made, as this was a dry run</h4>
    ${calls.map((/** @type {any} */ call) => {
      const turn = (/** @type {any} */ it) =>
        setWithout(
          it.target.checked
            ? without.filter((step) => step !== call.step)
            : [...without, call.step],
        );
      return html`<div class="card">
        <label><input type="checkbox" name="step" checked=${!without.includes(call.step)} onChange=${turn} /> step ${call.step}: <code>${call.tool}</code> (${call.effect})</label>
        <${Arguments} args=${call.arguments} />
      </div>`;
    })}
    ${
      can("runs:start") &&
      can("human:answer") &&
      html`<button class="first" disabled=${busy} title="A real run, whose chosen calls need no approval. It asks about others.">Make the chosen calls</button>`
    }
    <${Failure} text=${error} />
  </form>`;
}

/** @param {{ row: any, runId: string, choose: (key: string) => void }} props */
function Chosen({ row, runId, choose }) {
  const node = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => node.current?.scrollIntoView({ block: "nearest" }), [row.key]); // it is below the list
  return html`<aside class="chosen-row" ref=${node} aria-label=${`${row.name}, in full`}>
    <header>
      <h3>${row.name} <small>${row.note}</small></h3>
      <${Took} row=${row} now=${Date.now()} />
      <button type="button" class="plain" aria-label="close" onClick=${() => choose("")}>✕</button>
    </header>
    <${RowFacts} row=${row} />
    ${row.kind === "call" && html`<${CallFacts} row=${row} runId=${runId} />`}
    ${row.kind === "turn" && html`<${TurnFacts} row=${row} />`}
    ${row.kind === "subtasks" && html`<${Subtasks} row=${row} />`}
    ${row.question && html`<${About} question=${row.question} />`}
  </aside>`;
}

const INPUTS = "artifacts/inputs/"; // where the run keeps what was attached to messages to it

/** What the run has made; what was attached is shown with its message. @param {{ id: string, moves: number, course: import("./course.js").Course }} props */
function RunFiles({ id, moves, course }) {
  const [files, setFiles] = useState(/** @type {any} */ (null));
  const { error, act } = useAction();
  useEffect(
    () => void act(async () => setFiles(await request(runPath(id, "/artifacts")))),
    [id, moves],
  );
  if (!files) return html`<${Failure} text=${error} />`;
  if (!files.available)
    return html`<p class="quiet">This gateway does not share the folder of the runs' files.</p>`;
  const sent = [course.started, ...course.said.map(({ event }) => event?.answer)];
  const attached = new Set(sent.flatMap((it) => it?.attachments ?? []).map((file) => file.sha256));
  const own = files.artifacts.filter(
    (/** @type {any} */ file) => !(file.path.startsWith(INPUTS) && attached.has(file.sha256)),
  );
  if (!own.length) return html`<p class="quiet">The run has no files of its own.</p>`;
  return html`<${Files} runId=${id} files=${own} />`;
}
