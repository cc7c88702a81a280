/**
 * The course of a run, folded from its events: rows with a beginning and an end (turns, calls, waits, subtasks), and what
 * was said. Pure; `follow` feeds it from the event stream.
 */

import { html, runPath, useEffect, useRef, useState } from "./base.js";
import {
  brief,
  briefArguments,
  costText,
  countText,
  durationText,
  lastAtMost,
  words,
} from "./parts.js";

/**
 * @typedef {Object} Row A part of the run with a beginning and an end, in milliseconds. An open one has no end.
 * @property {string} key
 * @property {"turn" | "call" | "wait" | "subtasks"} kind
 * @property {string} name
 * @property {string} note
 * @property {number} start
 * @property {number | null} end
 * @property {number} [worked] When a call was handed out: from then on it waits for its result from outside.
 * @property {"good" | "bad" | "open"} how
 * @property {number} [step]
 * @property {string} [toolUseId] Of a call, and of a wait that let one be made.
 * @property {any} [args] Of a call.
 * @property {any} [outcome] Of a call.
 * @property {any} [verdict] The policy's, of a call.
 * @property {any} [question] Of a wait.
 * @property {string} [holds] Of a wait on the server: the activity that must not begin yet.
 * @property {any[]} [answers] To the question, in order.
 * @property {string} [ending] Of a question: answered, expired or withdrawn.
 * @property {any} [reply] Of a turn.
 * @property {{ at: number, text: string }[]} [retries]
 * @property {any} [delegation]
 *
 * @typedef {Object} Said An entry of the conversation.
 * @property {string} key
 * @property {string} kind
 * @property {number} at
 * @property {any} event
 * @property {Row} [row]
 * @property {string} [text]
 */

const HANDED_OUT = ["handed out", "waiting for the result"]; // the result of a call whose own comes from outside

export class Course {
  constructor() {
    /** @type {Row[]} */ this.rows = [];
    /** @type {Said[]} */ this.said = [];
    /** @type {number[]} */ this.moves = []; // times at which the run continued in another execution
    /** @type {{ kind: string, text: string } | null} */ this.live = null;
    /** @type {any} */ this.started = null;
    /** @type {any} */ this.end = null;
    /** @type {Map<string, Row>} */ this.byKey = new Map();
    /** @type {Map<string, any>} */ this.verdicts = new Map(); // of the policy, by tool use
    /** @type {Map<string, any>} */ this.asked = new Map(); // what the model asked for, by tool use
    this.version = 0;
  }

  /** @param {any} event */
  add(event) {
    this.version++;
    const at = Date.parse(event.at) || Date.now();
    const take = /** @type {any} */ (this)[`on_${event.type}`];
    if (take) take.call(this, event, at);
    else this.say("note", event, at, words(event.type));
  }

  /** @param {any} end The event `end` of the stream. */
  close(end) {
    this.version++;
    this.end = end;
    this.live = null;
    const last = Math.max(
      ...this.rows.map((row) => row.end ?? row.start),
      Date.parse(this.started?.at) || 0,
    );
    for (const row of this.rows) if (row.end === null) this.finish(row, last, "bad");
  }

  /** @param {string} kind @param {any} event @param {number} at @param {string} [text] @param {Row} [row] */
  say(kind, event, at, text, row) {
    this.said.push({ key: `${kind}-${this.said.length}`, kind, at, event, text, row });
  }

  /** @param {Row} row */
  begin(row) {
    this.rows.push(row);
    this.byKey.set(row.key, row);
    return row;
  }

  /** @param {Row | undefined} row @param {number} at @param {"good" | "bad"} how */
  finish(row, at, how) {
    if (!row || row.end !== null) return;
    row.end = Math.max(at, row.start);
    row.how = how;
  }

  // ---- the run

  /** @param {any} event @param {number} at */
  on_run_started(event, at) {
    this.started = event;
    this.say("goal", event, at, event.goal);
  }

  /** @param {any} _event @param {number} at */
  on_continued_as_new(_event, at) {
    this.moves.push(at);
  }

  on_run_ended() {
    this.live = null;
  }

  // ---- the model's turns

  /** @param {any} event @param {number} at */
  on_model_call_started(event, at) {
    const key = `turn-${event.turn}`;
    const known = this.byKey.get(key);
    if (known && known.end === null) return;
    const row = {
      key,
      kind: "turn",
      name: event.phase,
      note: `turn ${event.turn}`,
      start: at,
      end: null,
      how: "open",
    };
    this.begin(/** @type {Row} */ (row));
  }

  /** @param {any} event @param {number} at */
  on_model_replied(event, at) {
    this.live = null;
    this.on_model_call_started(event, at); // one that began in a fused activity
    const row = /** @type {Row} */ (this.byKey.get(`turn-${event.turn}`));
    const { reply } = event;
    row.reply = reply;
    row.note = [`turn ${event.turn}`, tokensText(reply.usage), costText(reply.cost_usd)]
      .filter(Boolean)
      .join(" · ");
    if (row.start === at) row.start = Math.max(at - (reply.duration_ms ?? 0), 0);
    this.finish(row, at, "good");
    for (const block of reply.content) {
      const use = block.type === "tool_use" ? block : null;
      if (use) this.asked.set(use.id, use);
    }
    for (const [id, verdict] of Object.entries(reply.verdicts ?? {}))
      this.verdicts.set(id, verdict);
    this.say("reply", event, at, textOf(reply.content), row);
    for (const call of event.calls ?? []) this.say("note", event, at, call);
  }

  /** @param {any} event */
  on_partial_text(event) {
    this.live = { kind: event.type, text: event.text };
  }

  /** @param {any} event */
  on_rate_limited(event) {
    this.on_partial_text(event);
  }

  /** @param {any} event */
  on_batch_wait(event) {
    this.on_partial_text(event);
  }

  // ---- calls

  /** @param {any} call */
  keyOf(call) {
    return `call-${call.tool_use_id || `step-${call.step}`}`;
  }

  /** @param {any} event @param {number} at */
  on_tool_call_started({ call, ...event }, at) {
    const key = this.keyOf(call);
    const known = this.byKey.get(key);
    if (known) {
      // made again: in another generation, or by another worker
      known.end = null;
      known.how = "open";
      known.retries = [...(known.retries ?? []), { at, text: "made again" }];
      return;
    }
    const args = call.arguments ?? this.asked.get(call.tool_use_id)?.input;
    const row = this.begin({
      key,
      kind: "call",
      name: call.tool,
      note: briefArguments(args),
      start: at,
      end: null,
      how: "open",
      step: call.step,
      toolUseId: call.tool_use_id,
      args,
      verdict: this.verdicts.get(call.tool_use_id),
    });
    if (call.approval) this.claim(row);
    this.say("call", event, at, row.note, row);
  }

  /** Note who let a call be made whose question is not told yet, if it can have been one answer alone. @param {Row} call */
  claim(call) {
    const untold = this.said.filter((said) => said.kind === "answer" && !said.row?.question);
    if (untold.length === 1 && untold[0].row) untold[0].row.toolUseId ??= call.toolUseId;
  }

  /** @param {any} event @param {number} at */
  on_tool_call_finished({ call, outcome }, at) {
    const row = this.byKey.get(this.keyOf(call));
    if (!row) return;
    row.outcome = outcome;
    this.finish(row, at, outcome.status === "ok" ? "good" : "bad");
  }

  /** @param {any} event @param {number} at */
  on_tool_result_received(event, at) {
    const row = this.rows.findLast((each) => each.kind === "call" && each.step === event.step);
    if (!row) return;
    row.outcome = event.outcome;
    row.worked ??= row.end ?? at;
    row.end = at;
    row.how = event.outcome.status === "ok" ? "good" : "bad";
  }

  /** @param {any} event @param {number} at */
  on_tool_call_refused(event, at) {
    const key = this.keyOf(event);
    const args = this.asked.get(event.tool_use_id)?.input;
    const known = this.byKey.get(key);
    const outcome = { status: "error", error: event.error };
    if (known) {
      known.outcome = outcome;
      this.finish(known, at, "bad");
      return;
    }
    const { step, tool_use_id: toolUseId } = event;
    const row = this.begin({
      key,
      kind: "call",
      name: event.tool,
      note: briefArguments(args) || event.call,
      start: at,
      end: at,
      how: "bad",
      step: step ?? undefined,
      toolUseId,
      args,
      outcome,
      verdict: this.verdicts.get(toolUseId),
    });
    this.say("call", event, at, row.note, row);
  }

  /** @param {any} event @param {number} at */
  on_activity_failed(event, at) {
    const row = event.tool_use_id ? this.byKey.get(`call-${event.tool_use_id}`) : this.openTurn();
    if (row && row.kind === "call")
      row.outcome = { status: "error", error: { kind: "failed", message: event.error } };
    this.finish(row, at, "bad");
    this.say("failure", event, at, `${event.activity}: ${event.error}`);
  }

  /** @param {any} event @param {number} at */
  on_tool_call_waiting(event, at) {
    this.say("note", event, at, event.text);
  }

  /** @param {any} event @param {number} at */
  on_activity_retrying(event, at) {
    const row = this.rows.findLast((each) => each.end === null && each.kind !== "wait");
    if (row)
      row.retries = [
        ...(row.retries ?? []),
        { at, text: `attempt ${event.attempt}: ${event.error}` },
      ];
    this.say(
      "note",
      event,
      at,
      `${words(event.activity)} is tried again, attempt ${event.attempt}: ${event.error}`,
    );
  }

  /** @param {any} event */
  on_run_held(event) {
    if (this.openHold(event.activity)) return;
    const at = Date.parse(event.since);
    const row = this.begin({
      key: `hold-${this.rows.length}`,
      kind: "wait",
      name: "held",
      note: `before ${words(event.activity)}: ${event.why}`,
      start: at,
      end: null,
      how: "open",
      holds: event.activity,
    });
    this.say("note", event, at, `held ${row.note}`);
  }

  /** @param {any} event */
  on_hold_ended(event) {
    this.on_run_held(event);
    this.finish(this.openHold(event.activity), Date.parse(event.until), "good");
  }

  /** @param {string} activity */
  openHold(activity) {
    return this.rows.findLast((row) => row.holds === activity && row.end === null);
  }

  openTurn() {
    return this.rows.findLast((row) => row.kind === "turn" && row.end === null);
  }

  // ---- people

  /** @param {any} event @param {number} at */
  on_wait_started(event, at) {
    const names = new Set(event.questions.map((/** @type {any} */ question) => question.id));
    for (const row of this.openWaits())
      if (!names.has(row.question?.id)) this.finish(row, at, "good");
    for (const question of event.questions) {
      const known = this.byKey.get(`wait-${question.id}`);
      if (known?.question) known.question = question;
      else this.ask(question, at);
    }
    if (event.status === "waiting_on_tool") this.handOut();
    else if (!event.questions.length) {
      this.begin({
        key: `wait-${this.rows.length}`,
        kind: "wait",
        name: "waits for a person",
        note: event.waiting_for,
        start: at,
        end: null,
        how: "open",
        answers: event.status === "waiting_on_human" ? [] : undefined,
      });
    }
  }

  /** The calls of this turn that were handed out are open until their result comes. */
  handOut() {
    for (let n = this.rows.length - 1; n >= 0 && this.rows[n].kind !== "turn"; n--) {
      const row = this.rows[n];
      const isOut = row.kind === "call" && HANDED_OUT.includes(row.outcome?.result);
      if (!isOut || row.end === null || row.worked) continue;
      row.worked = row.end;
      row.end = null;
      row.how = "open";
    }
  }

  /** @param {any} question @param {number} at */
  ask(question, at) {
    const groups = [
      ...new Set(
        (question.terms ?? []).flatMap((/** @type {any} */ terms) => terms.approvers ?? []),
      ),
    ];
    const facts = {
      name: groups.length ? `asks ${groups.join(", ")}` : "asks a person",
      note: question.tool ? `${question.tool}: ${brief(question.text, 80)}` : brief(question.text),
      question,
      toolUseId: question.tool_use_id,
    };
    const row =
      this.waitOf(question.id) ??
      this.begin({
        ...facts,
        key: `wait-${question.id}`,
        kind: "wait",
        start: Date.parse(question.asked_at) || at,
        end: null,
        how: "open",
        answers: [],
      });
    Object.assign(row, facts);
    this.say("question", question, row.start, question.text, row);
    const answers = this.said.filter(
      (said) => said.kind === "answer" && said.event.answer.question_id === question.id,
    );
    if (!answers.length) return row;
    const asked = /** @type {Said} */ (this.said.pop()); // which belongs before its answers
    this.said.splice(this.said.indexOf(answers[0]), 0, asked);
    row.answers = answers.map(({ event, at: answeredAt }) => ({ ...event, at: answeredAt }));
    row.note = answeredNote(row);
    return row;
  }

  /**
   * The row of a question. One that was answered before the stream began is told only once it has closed for the run, too:
   * until then, its first answer takes the wait of which nothing else is known.
   * @param {string} id
   */
  waitOf(id) {
    const known = this.byKey.get(`wait-${id}`);
    if (known) return known;
    const row = this.rows.findLast(
      (each) => each.kind === "wait" && each.answers && !each.question && !each.answers.length,
    );
    if (row) this.byKey.set(`wait-${id}`, row);
    return row;
  }

  openWaits() {
    return this.rows.filter((row) => row.kind === "wait" && row.end === null && !row.holds);
  }

  /** @param {any} _event @param {number} at */
  on_wait_ended(_event, at) {
    for (let n = this.rows.length - 1; n >= 0 && this.rows[n].kind !== "turn"; n--) {
      if (this.rows[n].worked) this.finish(this.rows[n], at, "bad"); // its result did not come in time
    }
    for (const row of this.openWaits()) this.finish(row, at, "good");
  }

  /** @param {any} event */
  on_question_closed({ question, end, closed_at }) {
    const known = this.byKey.get(`wait-${question.id}`);
    const row = known?.question ? known : this.ask(question, Date.parse(closed_at));
    row.ending = end;
    row.question = question;
    row.end = Math.max(Date.parse(closed_at), row.start);
    row.how = end === "answered" ? "good" : "bad";
    if (end !== "answered") row.note = `${row.note}: ${end}`;
  }

  /** @param {any} event @param {number} at */
  on_answer_received(event, at) {
    const { answer } = event;
    const asked = this.rows.filter((row) => row.question);
    const row = answer.question_id
      ? this.waitOf(answer.question_id)
      : (asked.findLast((each) => each.end === null) ?? asked[asked.length - 1]);
    if (row) {
      row.answers = [...(row.answers ?? []), { ...event, at }];
      row.note = answeredNote(row);
    }
    this.say("answer", event, at, answerText(event), row);
  }

  /** @param {any} event @param {number} at */
  on_answer_rejected(event, at) {
    this.say("failure", event, at, `not taken: ${answerText(event)}: ${event.reason}`);
  }

  /** @param {any} event @param {number} at */
  on_signal_received(event, at) {
    if (event.signal !== "human_input") this.say("note", event, at, `signal ${event.signal}`);
  }

  // ---- work elsewhere

  /** @param {any} event @param {number} at */
  on_delegation_started(event, at) {
    const count = countText(event.request.subtasks.length, "subtask");
    const row = this.begin({
      key: `delegation-${event.request.step}`,
      kind: "subtasks",
      name: "delegates",
      note: count,
      start: at,
      end: null,
      how: "open",
      step: event.request.step,
      delegation: event,
    });
    this.say("delegation", event, at, count, row);
  }

  /** @param {any} event @param {number} at */
  on_delegation_finished(event, at) {
    const row = this.rows.findLast((each) => each.kind === "subtasks" && each.end === null);
    if (!row) return;
    row.delegation = { ...row.delegation, state: event.state };
    row.note = `${row.note}: ${words(event.state.status)}`;
    this.finish(row, at, event.state.status === "done" ? "good" : "bad");
  }

  /** @param {any} event @param {number} at */
  on_follow_up_commanded(event, at) {
    this.say(
      "followUp",
      event,
      at,
      event.created ? "a follow-up waits for what comes later" : "its follow-up got a task",
    );
  }

  // ---- what the run did by itself

  /** @param {any} event @param {number} at */
  on_context_full(event, at) {
    this.say(
      "note",
      event,
      at,
      `the context is full: about ${event.full.tokens.toLocaleString()} tokens`,
    );
  }

  /** @param {any} event @param {number} at */
  on_context_compacted(event, at) {
    this.say("summary", event, at, "older messages were summarized");
  }

  /** @param {any} event @param {number} at */
  on_outcome_checked({ acceptance, ...event }, at) {
    const { rejection } = acceptance;
    this.say(
      rejection ? "failure" : "note",
      event,
      at,
      rejection ? `outcome not accepted: ${rejection}` : "outcome accepted",
    );
  }

  /** @param {any} event @param {number} at */
  on_calls_reviewed(event, at) {
    for (const review of event.reviews) {
      const reason = review.reason ? `: ${review.reason}` : "";
      this.say(
        "note",
        event,
        at,
        `review of ${review.tool}: ${review.verdict ?? "no verdict"}${reason}`,
      );
    }
  }

  /** @param {any} outer @param {number} at */
  on_notice_added({ event }, at) {
    this.say("note", event, at, noticeText(event));
  }

  /** @param {any} event @param {number} at */
  on_unreadable_event(event, at) {
    this.say(
      "failure",
      event,
      at,
      `event ${event.event_id} (${event.event_type}) cannot be read by this version`,
    );
  }
}

/** @param {any} notice */
function noticeText(notice) {
  if (notice.event === "agent.call.planned")
    return `${notice.call}: approved by the plan of ${notice.plan}`;
  if (notice.ladder === "thrash") return `a loop was detected: ${words(notice.stage)}`;
  if (notice.event === "agent.exhaustion.soft_limit")
    return "the time limit is reached: one last turn";
  return words(notice.event.replace(/^agent\./, "").replaceAll(".", " "));
}

const NUMBER = new Intl.NumberFormat(); // `toLocaleString` makes one each time

/** @param {any} usage */
export function tokensText(usage) {
  if (!usage) return "";
  const read = usage.input + usage.cache_read + usage.cache_write;
  return `${NUMBER.format(read)} → ${NUMBER.format(usage.output)} tokens`;
}

/** @param {any[]} content */
export const textOf = (content) =>
  content
    .filter((block) => block.type === "text")
    .map((block) => block.text)
    .join("\n");

/** What was asked, and the latest answer. @param {Row} row */
function answeredNote({ question, note, answers = [] }) {
  const asked = question ? (question.tool ?? brief(question.text, 60)) : brief(note, 60);
  return `${asked}: ${answerText(answers[answers.length - 1])}`;
}

/** Who answered what, with changed arguments. @param {any} event */
export function answerText({ answer, before }) {
  const who = answer.sender?.token ?? answer.by ?? answer.sender?.user ?? "a person";
  const names = answer.arguments
    ? [...new Set([...Object.keys(before ?? {}), ...Object.keys(answer.arguments)])]
    : [];
  const value = (/** @type {any} */ at, /** @type {string} */ name) =>
    at && name in at ? JSON.stringify(at[name]) : "none";
  const changes = names
    .filter((name) => value(before, name) !== value(answer.arguments, name))
    .map(
      (name) =>
        `${name}: ${brief(value(before, name), 60)} → ${brief(value(answer.arguments, name), 60)}`,
    );
  const said = [
    [answer.decision && words(answer.decision), ...changes].filter(Boolean).join(", "),
    answer.text,
  ];
  return `${who}: ${said.filter(Boolean).join(": ")}`;
}

// ---- time, with idle stretches shortened

/**
 * @typedef {Object} Scale
 * @property {(at: number) => number} place From 0 to 1.
 * @property {{ from: number, to: number, ms: number }[]} breaks Stretches that are shortened: their places, and their length.
 * @property {(place: number) => number} timeAt
 */

const SHORTENED = 0.035; // of the whole: the longest that a stretch without work may be

/**
 * Map time to places so that milliseconds of work stay visible beside a wait of days: only stretches in which turns or
 * calls run have their length; longer others are shortened.
 * @param {{ start: number, end: number | null, worked?: number, kind: string }[]} rows
 * @param {number} now
 * @returns {Scale}
 */
export function scaleOf(rows, now) {
  const times = rows.flatMap((row) => [row.start, row.worked ?? row.start, row.end ?? now]);
  const marks = [...new Set(times)].sort((a, b) => a - b);
  if (marks.length < 2) return { place: () => 0, breaks: [], timeAt: () => marks[0] ?? now };
  const busyUntil = coverage(
    rows.filter((row) => row.kind === "turn" || row.kind === "call"),
    now,
  );
  const busy = marks.slice(1).map((mark, n) => busyUntil(marks[n]) >= mark);
  const work = marks.slice(1).reduce((sum, mark, n) => sum + (busy[n] ? mark - marks[n] : 0), 0);
  const most = Math.max(work * SHORTENED, 40);
  const sums = [0];
  const breaks = [];
  for (let n = 1; n < marks.length; n++) {
    const ms = marks[n] - marks[n - 1];
    const isLong = !busy[n - 1] && ms > most;
    sums.push(sums[n - 1] + (isLong ? most : ms));
    if (isLong) breaks.push({ from: sums[n - 1], to: sums[n], ms });
  }
  const whole = sums[sums.length - 1] || 1;
  return {
    place: (at) => between(marks, sums, at) / whole,
    timeAt: (place) => between(sums, marks, place * whole),
    breaks: breaks.map(({ from, to, ms }) => ({ from: from / whole, to: to / whole, ms })),
  };
}

/** Return a function from a time at which a row begins or ends to the time until which rows cover it without a gap. */
function coverage(
  /** @type {{ start: number, end: number | null, worked?: number }[]} */ rows,
  /** @type {number} */ now,
) {
  const spans = rows
    .map((row) => [row.start, row.worked ?? row.end ?? now])
    .sort((a, b) => a[0] - b[0]);
  /** @type {number[][]} */ const joined = [];
  for (const [from, to] of spans) {
    const last = joined[joined.length - 1];
    if (last && from <= last[1]) last[1] = Math.max(last[1], to);
    else joined.push([from, to]);
  }
  const starts = joined.map((span) => span[0]);
  return (/** @type {number} */ at) => {
    const n = lastAtMost(starts, at);
    return n >= 0 && joined[n][1] > at ? joined[n][1] : at;
  };
}

/** Interpolate: the value at `x`, whose places are `from` and whose values are `to`. */
function between(
  /** @type {number[]} */ from,
  /** @type {number[]} */ to,
  /** @type {number} */ x,
) {
  const n = Math.min(Math.max(lastAtMost(from, x), 0), from.length - 2);
  const share = (x - from[n]) / (from[n + 1] - from[n] || 1);
  return to[n] + Math.min(Math.max(share, 0), 1) * (to[n + 1] - to[n]);
}

// ---- the stream

/**
 * Follow a run: its course so far, drawn at most once a frame, however many events come. The browser connects again by
 * itself, with the last event it has.
 * @param {string} runId
 * @returns {{ course: Course, lost: boolean }} `lost`: the stream is broken, and is tried again.
 */
export function useCourse(runId) {
  const course = useRef(new Course());
  const [, draw] = useState(0);
  const [lost, setLost] = useState(false);
  useEffect(() => {
    let frame = 0;
    course.current = new Course();
    const soon = () =>
      (frame ||= requestAnimationFrame(() => ((frame = 0), draw(performance.now()))));
    /** @type {EventSource} */ let source;
    /** @type {number} */ let timer;
    const open = () => {
      source = new EventSource(runPath(runId, "/events?rendered=true"));
      source.onopen = () => setLost(false);
      source.onmessage = (message) => {
        course.current.add(JSON.parse(message.data));
        soon();
      };
      source.addEventListener("end", (message) => {
        source.close();
        course.current.close(JSON.parse(message.data));
        soon();
      });
      source.onerror = () => {
        setLost(true);
        if (source.readyState !== EventSource.CLOSED) return; // it goes on by itself, with the last event it has
        timer = setTimeout(again, 2000); // the answer was no stream: 429, 503, or the session has ended
      };
    };
    const again = () => {
      course.current = new Course();
      open();
    };
    open();
    soon();
    return () => {
      source.close();
      clearTimeout(timer);
      cancelAnimationFrame(frame);
    };
  }, [runId]);
  return { course: course.current, lost };
}

/** What a row took, in words. @param {{ row: Row, now: number }} props */
export const Took = ({ row, now }) =>
  html`<span class="took">${row.end === null ? "… " : ""}${durationText((row.end ?? now) - row.start)}</span>`;
