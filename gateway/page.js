// Open questions, and one run as a live stream. The token stays in this tab, and is sent in one header only.

const KEPT = "perdure-token";
const EVERY = 8000; // milliseconds between polls; the gateway's lists are up to 2 s old
const byId = (id) => document.getElementById(id);
let shown = ""; // the questions on the page, as JSON
let following = null; // aborts the stream of the run on the page

function element(name, text = "", className = "") {
  const node = document.createElement(name);
  node.textContent = text;
  if (className) node.className = className;
  return node;
}

function notice(text, className = "") {
  byId("notice").textContent = text;
  byId("notice").className = className;
}

function headers(more = {}) {
  return { Authorization: `Bearer ${sessionStorage.getItem(KEPT) || ""}`, ...more };
}

async function api(path, body) {
  const options = body === undefined ? { headers: headers() } : {
    method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body),
  };
  const response = await fetch(path, options);
  const result = await response.json();
  if (!response.ok) throw new Error(result.detail || `the gateway answered ${response.status}`);
  return result;
}

const runPath = (id, rest = "") => `v1/runs/${encodeURIComponent(id)}${rest}`;

// ---- open questions

async function look() {
  if (!sessionStorage.getItem(KEPT)) return;
  try {
    const [{ questions }, { runs }] = await Promise.all([api("v1/questions"), api("v1/runs?limit=30")]);
    showQuestions(questions);
    showRuns(runs);
    if (byId("notice").className === "bad") notice("");
  } catch (error) {
    notice(error.message, "bad");
  }
}

function showQuestions(questions) {
  const now = JSON.stringify(questions);
  if (now === shown) return; // keep a half-typed answer
  const typed = new Map([...document.querySelectorAll("#waiting form")].map((form) => [form.id, form.text?.value]));
  shown = now;
  byId("count").textContent = questions.length ? `(${questions.length})` : "";
  const cards = questions.map(card);
  byId("waiting").replaceChildren(...(cards.length ? cards : [element("p", "No open questions.", "quiet")]));
  for (const form of document.querySelectorAll("#waiting form")) {
    if (form.text && typed.get(form.id)) form.text.value = typed.get(form.id);
  }
}

function card(open) {
  const article = element("article", "", "card");
  const title = element("p");
  title.append(link(open.run_id), element("span", open.agent ? ` · ${open.agent}` : "", "quiet"));
  article.append(title);
  if (open.goal) article.append(element("p", open.goal, "quiet"));
  if (!open.question) {
    article.append(element("p", open.waiting_for), element("p", "No worker answers.", "quiet"));
    return article;
  }
  article.append(element("p", TITLES[open.question.kind] ?? open.question.kind, "kind"), element("pre", open.question.text));
  if (open.question.call) article.append(element("p", `call ${open.question.call}`, "quiet"));
  if (open.question.expires_at) {
    article.append(element("p", `until ${new Date(open.question.expires_at).toLocaleString()}`, "quiet"));
  }
  article.append(answerForm(open));
  return article;
}

// The kind introduces each question: its text may imitate another kind.
const TITLES = {
  question: "The agent asks",
  approval: "Approve a call",
  resume_unsafe: "A call may have happened",
  definition_changed: "The agent's definition has changed",
  thrash: "The agent goes in circles",
  recovery: "The agent loses context",
  choice: "An input has to be chosen",
};
const LABELS = { approve_tool: "approve for this run" };
const TEXTUAL = ["question", "choice"];
const TAKE_TEXT = ["question", "thrash", "recovery", "resume_unsafe", "approval"];

function answerForm({ run_id, question }) {
  const form = element("form");
  form.id = `answer-${run_id}-${question.id}`;
  const named = { question_id: question.id, ...(question.call ? { call: question.call } : {}) };
  const isText = TEXTUAL.includes(question.kind);
  if (TAKE_TEXT.includes(question.kind)) {
    const field = element("input");
    field.name = "text";
    field.setAttribute("aria-label", `Answer for ${run_id}`);
    field.placeholder = question.kind === "approval" ? "a reason (optional)" : "your answer";
    form.append(field);
  }
  const text = () => form.text?.value.trim() || undefined;
  const send = (body) => answer(run_id, { ...named, ...body }, form);
  for (const option of question.options) {
    const button = element("button", LABELS[option] ?? option.replaceAll("_", " "), option === "approve" && !isText ? "first" : "");
    button.type = "button";
    button.dataset.option = option;
    button.addEventListener("click", () => send(isText ? { text: option } : { decision: option, text: text() }));
    form.append(button);
  }
  if (isText ? question.kind === "question" : ["thrash", "recovery"].includes(question.kind)) {
    form.append(element("button", "Answer", question.options.length ? "" : "first"));
  }
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (question.kind === "approval" || question.kind === "resume_unsafe") return; // by a button only, not by Enter
    if (text()) send({ text: text() });
  });
  return form;
}

async function answer(runId, body, form) {
  const buttons = [...form.querySelectorAll("button")];
  for (const button of buttons) button.disabled = true;
  try {
    await api(runPath(runId, "/answer"), body);
    notice(`${runId}: accepted`, "good");
    form.closest(".card").remove();
  } catch (error) {
    notice(`${runId}: ${error.message}`, "bad");
    for (const button of buttons) button.disabled = false;
  }
  await look();
}

// ---- the list of runs

function link(runId) {
  const anchor = element("a", runId);
  anchor.href = `#${encodeURIComponent(runId)}`;
  return anchor;
}

function showRuns(runs) {
  byId("runs").replaceChildren(...runs.map((run) => {
    const row = element("li");
    const mood = { completed: "good", failed: "bad", timed_out: "bad" }[run.status] || "quiet";
    row.append(link(run.run_id), " ", element("span", run.status.replaceAll("_", " "), mood));
    if (run.wedged) row.append(" ", element("span", "wedged", "bad"));
    row.append(element("div", `${run.agent} · ${new Date(run.started_at).toLocaleString()}`, "quiet"));
    return row;
  }));
}

// ---- one run

async function openRun() {
  following?.abort();
  const runId = decodeURIComponent(location.hash.slice(1));
  byId("run").hidden = !runId;
  if (!runId || !sessionStorage.getItem(KEPT)) return;
  for (const id of ["steps", "facts", "end", "goal"]) byId(id).replaceChildren();
  byId("plan-box").hidden = byId("live").hidden = true;
  byId("run-title").textContent = runId;
  byId("run-title").focus();
  following = new AbortController();
  const { signal } = following;
  let last = "";
  while (!signal.aborted) {
    try {
      const more = last ? { "Last-Event-ID": last } : {};
      const stream = await fetch(runPath(runId, "/events?rendered=true"), { headers: headers(more), signal });
      if (!stream.ok) throw Object.assign(new Error((await stream.json()).detail), { isFinal: stream.status < 500 });
      for await (const event of events(stream.body)) {
        if (signal.aborted) return;
        last = event.id || last;
        if (event.name === "end") {
          byId("end").textContent = ending(JSON.parse(event.data));
          await showFacts(runId);
          return;
        }
        happened(runId, JSON.parse(event.data));
      }
    } catch (error) {
      if (signal.aborted) return;
      notice(error.message, "bad");
      if (error.isFinal) return;
    }
    await new Promise((resolve) => setTimeout(resolve, 1000)); // then reconnect after the last event
  }
}

async function* events(body) {
  const decoder = new TextDecoder();
  let text = "";
  const reader = body.getReader();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += decoder.decode(value, { stream: true });
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const fields = {};
      for (const line of block.split("\n")) {
        const [, name, rest] = line.match(/^(\w+): ?(.*)$/s) || [];
        if (name) fields[name] = rest;
      }
      if (fields.data) yield { name: fields.event, id: fields.id, data: fields.data };
    }
  }
}

const brief = (value) => {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text.length > 300 ? `${text.slice(0, 300)} …` : text;
};

const LINES = {
  model_call_started: (it) => [it.phase, `turn ${it.turn} …`],
  tool_call_started: (it) => [`step ${it.call.step}`, `${it.call.tool} ${brief(it.call.arguments ?? {})}`],
  tool_call_finished: (it) => [`step ${it.call.step}`, `${it.call.tool}: ${it.outcome.status}, ${it.outcome.duration_ms} ms ${it.outcome.error?.message ?? ""}`],
  wait_started: (it) => ["waiting", it.question ? it.question.text : it.waiting_for],
  wait_ended: () => ["continues", ""],
  delegation_started: () => ["delegates", "to other agents"],
  delegation_finished: () => ["delegated", "all subtasks have ended"],
  activity_failed: (it) => ["failed", `${it.activity}: ${it.error}`],
  activity_retrying: (it) => ["retries", `${it.activity}, attempt ${it.attempt}: ${it.error}`],
  context_compacted: () => ["summary", "older messages were summarized"],
  context_full: () => ["context full", "the conversation will be shortened"],
};

function happened(runId, it) {
  if (it.type === "partial_text" || it.type === "rate_limited") {
    byId("live").hidden = false;
    byId("live").textContent = it.text;
    return;
  }
  if (it.type === "run_started") byId("goal").textContent = it.goal;
  if (it.type === "model_replied") {
    byId("live").hidden = true;
    const text = it.reply.content.filter((block) => block.type === "text").map((block) => block.text).join("\n");
    if (text && it.phase === "plan") {
      byId("plan-box").hidden = false;
      byId("plan").textContent = text;
    } else if (text) {
      step("says", text);
    }
    showFacts(runId).catch((error) => notice(error.message, "bad"));
  }
  if (it.type === "wait_started" || it.type === "wait_ended") look();
  const line = LINES[it.type];
  if (line) step(...line(it));
}

function step(what, text) {
  const row = element("li");
  row.append(element("span", what), " ", element("span", brief(text)));
  const list = byId("steps");
  const isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40; // else the reader has scrolled up
  list.append(row);
  if (isAtEnd) list.scrollTop = list.scrollHeight;
}

async function showFacts(runId) {
  const { known, state } = await api(runPath(runId));
  if (runId !== decodeURIComponent(location.hash.slice(1))) return; // another run is on the page now
  const facts = { status: known.status.replaceAll("_", " "), agent: known.agent };
  if (state) {
    const { usage } = state;
    const read = usage.input + usage.cache_read + usage.cache_write;
    Object.assign(facts, {
      model: state.model,
      steps: `${state.step} of ${state.max_steps}, model turns ${state.turns}`,
      tokens: `${read.toLocaleString()} → ${usage.output.toLocaleString()}, ${usage.cache_read.toLocaleString()} cached`,
      cost: state.cost_usd === null ? "unknown" : `USD ${state.cost_usd.toFixed(4)}`,
    });
  }
  byId("facts").replaceChildren(...Object.entries(facts).flatMap(([name, value]) => [
    element("dt", name), element("dd", value),
  ]));
}

function ending(end) {
  const text = end.event?.payload?.outcome || end.event?.payload?.detail || end.message || "";
  return `${end.status.replaceAll("_", " ")}${text ? `: ${text}` : ""}`;
}

// ---- the token

byId("entry").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEPT, byId("token").value.trim());
  byId("token").value = "";
  shown = "";
  notice("");
  look();
  openRun();
});

byId("forget").addEventListener("click", () => {
  sessionStorage.removeItem(KEPT);
  location.hash = "";
  location.reload();
});

addEventListener("hashchange", openRun);
const lookIfVisible = () => { if (!document.hidden) look(); };
setInterval(lookIfVisible, EVERY);
document.addEventListener("visibilitychange", lookIfVisible);
look();
openRun();
