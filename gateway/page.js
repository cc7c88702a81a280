// What waits for people, and one run as it happens. The token stays in this tab, and goes into one header.

const KEPT = "perdure-token";
const EVERY = 3000; // milliseconds between looks at what waits
const byId = (id) => document.getElementById(id);
let shown = ""; // the questions that are on the page, as JSON
let following = null; // ends the stream of the run that is shown

function element(name, text = "", className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
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
  const answer = await fetch(path, options);
  const said = await answer.json();
  if (!answer.ok) throw new Error(said.detail || `the gateway answered ${answer.status}`);
  return said;
}

const runPath = (id, rest = "") => `v1/runs/${encodeURIComponent(id)}${rest}`;

// ---- what waits for people

async function look() {
  if (!sessionStorage.getItem(KEPT)) return;
  try {
    const [asked, listed] = await Promise.all([api("v1/questions"), api("v1/runs?limit=30")]);
    showQuestions(asked.questions);
    showRuns(listed.runs);
    if (byId("notice").className === "bad") notice("");
  } catch (error) {
    notice(error.message, "bad");
  }
}

function showQuestions(questions) {
  const now = JSON.stringify(questions);
  if (now === shown) return; // what somebody is typing stays
  const typed = new Map([...document.querySelectorAll("#waiting form")].map((form) => [form.id, form.said?.value]));
  shown = now;
  byId("count").textContent = questions.length ? `(${questions.length})` : "";
  const cards = questions.map(card);
  byId("waiting").replaceChildren(...(cards.length ? cards : [element("p", "Nothing waits.", "quiet")]));
  for (const form of document.querySelectorAll("#waiting form")) {
    if (form.said && typed.get(form.id)) form.said.value = typed.get(form.id);
  }
}

function card(open) {
  const made = element("article", "", "card");
  const title = element("p");
  title.append(link(open.run_id), element("span", open.agent ? ` · ${open.agent}` : "", "quiet"));
  made.append(title);
  if (open.goal) made.append(element("p", open.goal, "quiet"));
  if (!open.question) {
    made.append(element("p", open.waiting_for), element("p", "No worker answers now.", "quiet"));
    return made;
  }
  made.append(element("p", TITLES[open.question.kind] ?? open.question.kind, "kind"), element("pre", open.question.text));
  if (open.question.call) made.append(element("p", `call ${open.question.call}`, "quiet"));
  if (open.question.expires_at) {
    made.append(element("p", `until ${new Date(open.question.expires_at).toLocaleString()}`, "quiet"));
  }
  made.append(answerForm(open));
  return made;
}

// Each question is introduced by its kind: its own words may imitate another one.
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
    field.name = "said";
    field.setAttribute("aria-label", `Answer for ${run_id}`);
    field.placeholder = question.kind === "approval" ? "a reason, if you like" : "in words";
    form.append(field);
  }
  const said = () => form.said?.value.trim() || undefined;
  const send = (body) => answer(run_id, { ...named, ...body }, form);
  for (const option of question.options) {
    const button = element("button", LABELS[option] ?? option.replaceAll("_", " "), option === "approve" && !isText ? "first" : "");
    button.type = "button";
    button.dataset.option = option;
    button.addEventListener("click", () => send(isText ? { text: option } : { decision: option, text: said() }));
    form.append(button);
  }
  if (isText ? question.kind === "question" : ["thrash", "recovery"].includes(question.kind)) {
    form.append(element("button", "Answer", question.options.length ? "" : "first"));
  }
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (question.kind === "approval" || question.kind === "resume_unsafe") return; // by a button, never by Enter
    if (said()) send({ text: said() });
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
  const made = element("a", runId);
  made.href = `#${encodeURIComponent(runId)}`;
  return made;
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
    await new Promise((resolve) => setTimeout(resolve, 1000)); // then go on after the last event
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
  wait_started: (it) => ["waits", it.question ? it.question.text : it.waiting_for],
  wait_ended: () => ["goes on", ""],
  delegation_started: () => ["delegates", "to other agents"],
  delegation_finished: () => ["delegated", "all of it has ended"],
  activity_failed: (it) => ["failed", `${it.activity}: ${it.error}`],
  activity_retrying: (it) => ["tries again", `${it.activity}, attempt ${it.attempt}: ${it.error}`],
  context_compacted: () => ["summary", "older messages are summed up"],
  context_full: () => ["too long", "the conversation is made shorter"],
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
  byId("steps").append(row);
}

async function showFacts(runId) {
  const { known, state } = await api(runPath(runId));
  if (runId !== decodeURIComponent(location.hash.slice(1))) return; // another one is shown by now
  const facts = { status: known.status.replaceAll("_", " "), agent: known.agent };
  if (state) {
    const { usage } = state;
    const read = usage.input + usage.cache_read + usage.cache_write;
    Object.assign(facts, {
      model: state.model,
      steps: `${state.step} of ${state.max_steps}, model turns ${state.turns}`,
      tokens: `${read.toLocaleString()} → ${usage.output.toLocaleString()}, ${usage.cache_read.toLocaleString()} cached`,
      cost: state.cost_usd === null ? "not known" : `USD ${state.cost_usd.toFixed(4)}`,
    });
  }
  byId("facts").replaceChildren(...Object.entries(facts).flatMap(([name, value]) => [
    element("dt", name), element("dd", value),
  ]));
}

function ending(end) {
  const said = end.event?.payload?.outcome || end.event?.payload?.detail || end.message || "";
  return `${end.status.replaceAll("_", " ")}${said ? `: ${said}` : ""}`;
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
setInterval(look, EVERY);
look();
openRun();
