// Open questions, and one run as a live stream. The token is sent once, for a cookie that no script can read.

const OWN = { "X-Perdure": "1" }; // in each request: a page of another origin cannot send it
const MAX_NAME = 200; // characters of a file's name
const EVERY = 8000; // milliseconds between polls; the gateway's lists are up to 2 s old
const byId = (id) => document.getElementById(id);
let shown = ""; // the questions on the page, as JSON
let hasFailed = false; // the last poll
let following = null; // aborts the stream of the run on the page
let isSignedIn = false;

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

async function api(path, body) {
  return readAnswer(await request(path, body === undefined ? {} : {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  }));
}

async function request(path, options = {}) {
  const response = await fetch(path, { ...options, headers: { ...OWN, ...options.headers } });
  if (response.status === 401) showEntry();
  return response;
}

async function readAnswer(response) {
  const result = response.status === 204 ? null : await response.json();
  if (!response.ok) throw new Error(result.detail || `the gateway answered ${response.status}`);
  return result;
}

const runPath = (id, rest = "") => `v1/runs/${encodeURIComponent(id)}${rest}`;

// ---- open questions

async function refresh() {
  if (!isSignedIn) return;
  try {
    const asked = filtered();
    const [{ questions, is_partial }, { runs }] = await Promise.all([api(asked), api("v1/runs?limit=30")]);
    if (asked !== filtered()) return; // changed meanwhile, which refreshes again
    showQuestions(questions, is_partial);
    showRuns(runs);
    if (hasFailed) notice(""); // but not the reason why an answer was rejected
    hasFailed = false;
  } catch (error) {
    hasFailed = true;
    notice(error.message, "bad");
  }
}

// The path of the questions that the filter asks for.
function filtered() {
  const set = [...new FormData(byId("filter"))].map(([name, value]) => [name, value.trim()]).filter(([, value]) => value);
  return set.length ? `v1/questions?${new URLSearchParams(set)}` : "v1/questions";
}

function showQuestions(questions, isPartial) {
  const now = JSON.stringify([filtered(), questions, isPartial]);
  if (now === shown) return; // keep a half-typed answer
  const forms = [...document.querySelectorAll("#waiting form")];
  const typed = new Map(forms.map((form) => [form.id, form.text?.value]));
  // What a person did to a call is kept for that call alone: it may have been changed elsewhere.
  const changed = new Map(forms.map((form) => [form.id + form.dataset.call, form.changed?.value]));
  const chosen = new Set(forms.filter((form) => form.chosen?.checked).map((form) => form.id + form.dataset.call));
  const files = new Map(forms.map((form) => [form.id, form.attached?.files]));
  shown = now;
  byId("filter-on").textContent = filtered() === "v1/questions" ? "" : " (on)";
  byId("count").textContent = questions.length ? `(${questions.length})` : "";
  const cards = questions.map(card);
  if (questions.filter(({ question }) => question?.call).length > 1) cards.unshift(chosenBar(questions));
  if (!cards.length) cards.push(element("p", filtered() === "v1/questions" ? "No open questions." : "No such question is open.", "quiet"));
  if (isPartial) cards.push(element("p", "More runs wait for a person than were looked at.", "quiet"));
  byId("waiting").replaceChildren(...cards);
  for (const form of document.querySelectorAll("#waiting form")) {
    if (form.text && typed.get(form.id)) form.text.value = typed.get(form.id);
    const call = form.id + form.dataset.call;
    if (form.changed && changed.get(call)) form.changed.value = changed.get(call);
    if (form.chosen) form.chosen.checked = chosen.has(call);
    if (form.attached && files.get(form.id)) {
      form.attached.files = files.get(form.id);
      form.attached.dispatchEvent(new Event("change"));
    }
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
  form.dataset.call = question.call ?? "";
  const named = namedIn(question);
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
  if (question.call) form.append(chosenBox(run_id, question), changedField(question));
  const decide = (option) => {
    const own = option === "approve" && form.changed?.value.trim() !== form.changed?.defaultValue.trim();
    return { decision: option, text: text(), ...(own ? { arguments: form.changed.value } : {}) };
  };
  for (const option of question.options) {
    const button = element("button", LABELS[option] ?? option.replaceAll("_", " "), option === "approve" && !isText ? "first" : "");
    button.type = "button";
    button.dataset.option = option;
    button.addEventListener("click", () => send(isText ? { text: option } : decide(option)));
    form.append(button);
  }
  if (isText ? question.kind === "question" : ["thrash", "recovery"].includes(question.kind)) {
    form.append(element("button", "Answer", question.options.length ? "" : "first"));
  }
  if (question.kind === "question" && !run_id.startsWith("wf:")) form.append(...filesField(run_id)); // no others take files
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (question.kind === "approval" || question.kind === "resume_unsafe") return; // by a button only, not by Enter
    if (text() || form.attached?.files.length) send({ text: text() });
  });
  return form;
}

// The question and its call, with the text that the card shows.
const namedIn = ({ id, call, text }) => ({ question_id: id, ...(call ? { call, shown: text } : {}) });

async function answer(runId, body, form) {
  const buttons = [...form.querySelectorAll("button")];
  for (const button of buttons) button.disabled = true;
  try {
    if (body.arguments !== undefined) body.arguments = JSON.parse(body.arguments);
    const files = [...(form.attached?.files ?? [])];
    if (files.length) body.attachments = await uploadAll(files);
    await api(runPath(runId, "/answer"), body);
    notice(`${runId}: accepted`, "good");
    form.closest(".card").remove();
  } catch (error) {
    notice(`${runId}: ${error.message}`, "bad");
    for (const button of buttons) button.disabled = false;
  }
  await refresh();
}

function filesField(runId) {
  const label = element("label", "attach files", "attach"), field = element("input");
  field.type = "file";
  field.name = "attached";
  field.multiple = true;
  field.accept = "image/png,image/jpeg,image/webp,image/gif,application/pdf";
  field.setAttribute("aria-label", `Attach images and PDF to the answer for ${runId}`);
  label.append(field);
  const chosen = element("button", "", "quiet");
  chosen.type = "button";
  chosen.hidden = true;
  chosen.title = "remove";
  field.addEventListener("change", () => {
    chosen.hidden = !field.files.length;
    chosen.textContent = `✕ ${[...field.files].map((file) => file.name).join(", ")}`;
  });
  chosen.addEventListener("click", () => {
    field.value = "";
    field.dispatchEvent(new Event("change"));
  });
  return [label, chosen];
}

async function uploadAll(files) {
  const attachments = [];
  for (const file of files) {
    notice(`sending ${file.name} …`);
    const { name, media_type, sha256 } = await upload(file);
    attachments.push({ name, media_type, sha256 });
  }
  return attachments;
}

async function upload(file) {
  const name = file.name.slice(-MAX_NAME);
  try {
    const path = `v1/files?name=${encodeURIComponent(name)}`;
    return await readAnswer(await request(path, { method: "POST", body: file }));
  } catch (error) {
    throw new Error(error.message.startsWith(name) ? error.message : `${name}: ${error.message}`);
  }
}

// Several calls are decided with one request for each run, and each answer names its call.

function chosenBox(runId, question) {
  const label = element("label", "", "quiet"), box = element("input");
  box.type = "checkbox";
  box.name = "chosen";
  box.setAttribute("aria-label", `Choose ${question.id} of ${runId}`);
  label.append(box, "choose");
  return label;
}

function changedField(question) {
  const details = element("details"), field = element("textarea");
  field.name = "changed";
  field.rows = 6;
  field.defaultValue = JSON.stringify(question.arguments ?? {}, null, 2);
  field.setAttribute("aria-label", `Arguments of ${question.id}`);
  details.append(element("summary", "change the arguments"), field);
  return details;
}

function chosenBar(questions) {
  const bar = element("p", "", "chosen");
  for (const decision of ["approve", "deny"]) {
    const button = element("button", `${decision} chosen`);
    button.type = "button";
    button.dataset.chosen = decision;
    button.addEventListener("click", () => decideChosen(questions, decision));
    bar.append(button, " ");
  }
  return bar;
}

async function decideChosen(questions, decision) {
  const byRun = new Map();
  for (const { run_id, question } of questions) {
    if (!question || !byId(`answer-${run_id}-${question.id}`)?.chosen?.checked) continue;
    const body = { ...namedIn(question), decision };
    byRun.set(run_id, [...(byRun.get(run_id) ?? []), body]);
  }
  const reasons = [];
  for (const [runId, answers] of byRun) {
    try {
      const { results } = await api(runPath(runId, "/answers"), { answers });
      reasons.push(...results.filter((it) => !it.accepted).map((it) => `${runId} ${it.question_id}: ${it.reason}`));
    } catch (error) {
      reasons.push(`${runId}: ${error.message}`);
    }
  }
  notice(reasons.join("; ") || "accepted", reasons.length ? "bad" : "good");
  await refresh();
}

// ---- the list of runs

function link(runId) {
  const anchor = element("a", runId);
  anchor.href = `#${encodeURIComponent(runId)}`;
  return anchor;
}

const statusOf = (run) => (run.dry_run ? "dry run, " : "") + run.status.replaceAll("_", " ") + (run.subtasks_failed ? ", subtasks failed" : "");

function showRuns(runs) {
  byId("runs").replaceChildren(...runs.map((run) => {
    const row = element("li");
    const mood = { completed: "good", failed: "bad", timed_out: "bad" }[run.status] || "quiet";
    row.append(link(run.run_id), " ", element("span", statusOf(run), mood));
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
  if (!runId || !isSignedIn) return;
  for (const id of ["steps", "facts", "end", "goal", "attached", "files"]) byId(id).replaceChildren();
  for (const id of ["plan-box", "live", "result-box", "files-box", "dry-box"]) byId(id).hidden = true;
  for (const url of opened.splice(0)) URL.revokeObjectURL(url);
  attached.clear();
  byId("run-title").textContent = runId;
  byId("run-title").focus();
  following = new AbortController();
  const { signal } = following;
  let last = "";
  while (!signal.aborted) {
    try {
      const headers = last ? { "Last-Event-ID": last } : {};
      const stream = await request(runPath(runId, "/events?rendered=true"), { headers, signal });
      if (!stream.ok) throw Object.assign(new Error((await stream.json()).detail), { isFinal: stream.status < 500 });
      for await (const event of events(stream.body)) {
        if (signal.aborted) return;
        last = event.id || last;
        if (event.name === "end") {
          const end = JSON.parse(event.data);
          byId("end").textContent = ending(end);
          showResult(end.event?.payload?.result);
          showDryCalls(runId, end.event?.payload);
          await Promise.all([showFacts(runId), showFiles(runId)]);
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

// Who answered what, with each argument that was changed: "ann: approve, cents: 100 → 900".
function said({ by, sender, text, decision, arguments: after }, before = null) {
  const names = after ? Object.keys({ ...before, ...after }) : [];
  const value = (at, name) => (at && name in at ? JSON.stringify(at[name]) : "none");
  const changes = names.filter((name) => value(before, name) !== value(after, name))
    .map((name) => `${name}: ${brief(value(before, name))} → ${brief(value(after, name))}`);
  const words = [[decision, ...changes].filter(Boolean).join(", "), text].filter(Boolean).join(": ");
  return [sender?.token ?? by, words].filter(Boolean).join(": ");
}

const LINES = {
  model_call_started: (it) => [it.phase, `turn ${it.turn} …`],
  tool_call_started: (it) => [`step ${it.call.step}`, `${it.call.tool} ${brief(it.call.arguments ?? {})}`],
  tool_call_finished: (it) => [`step ${it.call.step}`, `${it.call.tool}: ${it.outcome.status}, ${it.outcome.duration_ms} ms ${it.outcome.error?.message ?? ""}`],
  tool_call_refused: (it) => [it.step ? `step ${it.step}` : "call", `${it.call}: ${it.error.kind}, ${it.error.message}`],
  tool_result_received: (it) => [`step ${it.step}`, `result of ${it.tool}: ${it.outcome.status} ${it.outcome.error?.message ?? ""}`],
  wait_started: (it) => ["waiting", it.questions.map((asked) => asked.text).join("\n") || it.waiting_for],
  wait_ended: () => ["continues", ""],
  answer_received: ({ answer, before }) => ["answer", said(answer, before)],
  answer_rejected: ({ answer, reason }) => ["not taken", `${said(answer)}: ${reason}`],
  delegation_started: (it) => ["delegates", it.request.subtasks.map((part) => `${part.id} to ${part.agent}`).join(", ")],
  delegation_finished: ({ state }) => [`delegation ${state.status}`, state.subtasks.map((part) => `${part.id}: ${part.status}`).join(", ")],
  activity_failed: (it) => ["failed", `${it.activity}: ${it.error}`],
  activity_retrying: (it) => ["retries", `${it.activity}, attempt ${it.attempt}: ${it.error}`],
  context_compacted: () => ["summary", "older messages were summarized"],
  outcome_checked: (it) => ["checked", it.acceptance.rejection ? `not accepted: ${it.acceptance.rejection}` : "accepted"],
  unreadable_event: (it) => ["unreadable", `event ${it.event_id} (${it.event_type}) cannot be read by this version`],
  context_full: () => ["context full", "the conversation will be shortened"],
};

function happened(runId, it) {
  if (["partial_text", "rate_limited", "batch_wait"].includes(it.type)) {
    byId("live").hidden = false;
    byId("live").textContent = it.text;
    return;
  }
  if (it.type === "run_started") {
    if (it.dry_run) step("dry run", "calls that change something are not made");
    byId("goal").textContent = it.goal;
    byId("attached").append(...attachedViews(runId, it.attachments));
  }
  if (it.type === "model_replied") {
    byId("live").hidden = true;
    const text = it.reply.content.filter((block) => block.type === "text").map((block) => block.text).join("\n");
    if (text && it.phase === "plan") {
      byId("plan-box").hidden = false;
      byId("plan").textContent = text;
    } else if (text) {
      step("says", text);
    }
    for (const call of it.calls) step("calls", call);
    showFacts(runId).catch((error) => notice(error.message, "bad"));
  }
  if (["wait_started", "wait_ended", "answer_received"].includes(it.type)) refresh();
  const line = LINES[it.type];
  if (line) step(...line(it), [...attachedViews(runId, it.answer?.attachments), ...mediaViews(runId, it.outcome?.media)]);
  if (it.outcome?.artifacts?.length) showFiles(runId).catch((error) => notice(error.message, "bad"));
}

function step(what, text, files = []) {
  const row = element("li");
  const said = element("span", brief(text));
  row.append(element("span", what), " ", said);
  if (files.length) {
    said.append(element("span", "", "files"));
    said.lastChild.append(...files);
  }
  const list = byId("steps");
  const isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40; // else the reader has scrolled up
  list.append(row);
  if (isAtEnd) list.scrollTop = list.scrollHeight;
}

async function showFacts(runId) {
  const { known, state } = await api(runPath(runId));
  if (runId !== decodeURIComponent(location.hash.slice(1))) return; // another run is on the page now
  const facts = { status: statusOf(known), agent: known.agent };
  if (state) {
    const { usage } = state;
    const read = usage.input + usage.cache_read + usage.cache_write;
    Object.assign(facts, {
      model: state.model,
      steps: `${state.step} of ${state.max_steps}, model turns ${state.turns}`,
      tokens: `${read.toLocaleString()} → ${usage.output.toLocaleString()}, ${usage.cache_read.toLocaleString()} cached`,
      cost: state.cost_usd === null ? partOfCost(state) : `USD ${state.cost_usd.toFixed(4)}`,
    });
  }
  byId("facts").replaceChildren(...Object.entries(facts).flatMap(([name, value]) => [
    element("dt", name), element("dd", value),
  ]));
}

// A cost of which the part of some models, without a price in [prices], is not known.
function partOfCost({ known_usd: known = 0, unpriced = {} }) {
  const models = Object.entries(unpriced).map(([model, tokens]) => `${tokens.toLocaleString()} tokens of ${model}`);
  const rest = models.length ? `${models.join(", ")} without a price in [prices]` : "";
  return [known ? `USD ${known.toFixed(4)} and` : "unknown:", rest].join(" ");
}

function ending(end) {
  const text = end.event?.payload?.outcome || end.event?.payload?.detail || end.message || "";
  return `${statusOf({ ...end, ...end.event?.payload, status: end.status })}${text ? `: ${text}` : ""}`;
}

// The calls that a dry run did not make. Those that stay chosen are made by a real run without approval.
function showDryCalls(runId, payload) {
  byId("dry-box").hidden = !payload?.dry_run;
  if (!payload?.dry_run) return;
  const calls = payload.dry_calls ?? [];
  const rows = calls.map((call) => {
    const row = element("div", "", "card"), label = element("label"), box = element("input");
    box.type = "checkbox";
    box.name = "step";
    box.value = call.step;
    box.checked = true;
    label.append(box, ` ${call.step} ${call.tool} (${call.effect})`);
    row.append(label, element("pre", JSON.stringify(call.arguments, null, 2)));
    return row;
  });
  const start = element("button", "Make the chosen calls", "first");
  start.title = "Start a real run, whose chosen calls need no approval. It asks about others.";
  byId("dry").replaceChildren(...(rows.length ? [...rows, start] : [element("p", "It would have made no other call.", "quiet")]));
  byId("dry").onsubmit = (event) => {
    event.preventDefault();
    startPlan(runId, start);
  };
}

async function startPlan(runId, button) {
  const without = [...byId("dry").querySelectorAll("[name=step]")].filter((box) => !box.checked).map((box) => Number(box.value));
  button.disabled = true;
  try {
    const { run_id } = await api(runPath(runId, "/plan"), { without });
    notice(`${run_id}: started with the plan of ${runId}`, "good");
    location.hash = encodeURIComponent(run_id);
    await refresh();
  } catch (error) {
    notice(error.message, "bad");
    button.disabled = false;
  }
}

// ---- files: images as thumbnails, others to download

const opened = []; // addresses of what was fetched for the run on the page
const attached = new Set(); // hashes of the files that messages to the run brought, which are not among its own files

const size = (bytes) => {
  if (bytes === undefined) return "";
  const [unit, name] = bytes >= 1e6 ? [1e6, "MB"] : bytes >= 1e3 ? [1e3, "kB"] : [1, "bytes"];
  return ` · ${(bytes / unit).toFixed(bytes < 1e3 || bytes >= 10 * unit ? 0 : 1)} ${name}`;
};

function mediaViews(runId, media = []) {
  return media.map((file) => fileView(
    file.name || file.path.split("/").pop(), file.media_type, size(file.bytes), file.sha256 && runPath(runId, `/media/${file.sha256}`),
  ));
}

function attachedViews(runId, attachments = []) {
  for (const file of attachments) attached.add(file.sha256);
  return mediaViews(runId, attachments);
}

function fileView(name, type, facts, path) {
  const view = element("a", `${name}${facts}`);
  if (!path) return view;
  view.href = path; // until the file is there
  if (!type || type.startsWith("image/")) { // who attaches a file need not say its type
    view.target = "_blank";
    thumbnail(view, name, path).catch(() => view.removeAttribute("href"));
    return view;
  }
  view.addEventListener("click", async (event) => {
    if (view.download) return;
    event.preventDefault();
    try {
      view.href = (await fetchFile(path)).url;
      view.download = name.split("/").pop();
      view.click();
    } catch (error) {
      notice(`${name}: ${error.message}`, "bad");
    }
  });
  return view;
}

async function fetchFile(path, attempts = 1) {
  const response = await request(path, { signal: following?.signal });
  if (response.status === 404 && attempts > 1) { // the run has not read it yet
    await new Promise((resolve) => setTimeout(resolve, 1000));
    return fetchFile(path, attempts - 1);
  }
  if (!response.ok) throw new Error((await response.json()).detail);
  const blob = await response.blob();
  const url = URL.createObjectURL(blob);
  opened.push(url);
  return { blob, url };
}

async function thumbnail(view, name, path) {
  const { blob, url } = await fetchFile(path, 10);
  view.href = url;
  if (!blob.type.startsWith("image/")) return;
  const image = await createImageBitmap(blob);
  const scale = Math.min(1, 512 / image.width, 288 / image.height);
  const canvas = element("canvas"); // drawn, since the page's policy allows no image from memory
  canvas.width = Math.max(1, image.width * scale);
  canvas.height = Math.max(1, image.height * scale);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", name);
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  view.prepend(canvas);
}

const INPUTS = "artifacts/inputs/"; // the run's copies of attachments

async function showFiles(runId) {
  const listed = await api(runPath(runId, "/artifacts"));
  if (runId !== decodeURIComponent(location.hash.slice(1))) return; // another run is on the page now
  const views = new Map([...byId("files").children].map((view) => [view.dataset.key, view]));
  const artifacts = listed.artifacts.filter((file) => !(file.path.startsWith(INPUTS) && attached.has(file.sha256)));
  byId("files").replaceChildren(...artifacts.map((file) => {
    const key = `${file.sha256} ${file.path}`;
    const path = runPath(runId, `/${file.path.split("/").map(encodeURIComponent).join("/")}`);
    const view = views.get(key) ?? fileView(file.path.replace("artifacts/", ""), file.content_type, size(file.bytes), path);
    view.dataset.key = key;
    return view;
  }));
  byId("files-box").hidden = !artifacts.length;
}

function showResult(result) {
  byId("result-box").hidden = result === undefined; // null is a result
  byId("result").textContent = JSON.stringify(result, null, 2) ?? "";
}

// ---- signing in

function showEntry(session = null) {
  isSignedIn = session !== null;
  byId("sign-in").hidden = isSignedIn;
  byId("forget").hidden = session?.credential !== "cookie"; // a proxy's person signs out there
}

// Begin with the session of the cookie, if there is one.
async function resume() {
  const response = await request("v1/session");
  if (response.status === 401) return;
  showEntry(await readAnswer(response));
  shown = "";
  notice("");
  refresh();
  openRun();
}

async function signIn(token) {
  await api("v1/session", { token });
  await resume();
  if (!isSignedIn) throw new Error("The browser did not keep the cookie: open the page over HTTPS.");
}

async function forget() {
  await readAnswer(await request("v1/session", { method: "DELETE" }));
  location.hash = "";
  location.reload();
}

const tell = (error) => notice(error.message, "bad");
byId("entry").addEventListener("submit", (event) => {
  event.preventDefault();
  signIn(byId("token").value.trim()).catch(tell);
  byId("token").value = "";
});
byId("forget").addEventListener("click", () => forget().catch(tell));

for (const [kind, title] of Object.entries(TITLES)) byId("filter").kind.append(new Option(title, kind));
byId("filter").addEventListener("change", refresh);
byId("filter").addEventListener("submit", (event) => event.preventDefault());

addEventListener("hashchange", openRun);
const refreshIfVisible = () => { if (!document.hidden) refresh(); };
setInterval(refreshIfVisible, EVERY);
document.addEventListener("visibilitychange", refreshIfVisible);
resume().catch((error) => {
  showEntry();
  tell(error);
});
