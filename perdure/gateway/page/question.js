/** A question to a person: what is asked, about which call, and its answer. */

import { html, lookAgain, request, runPath, useAction, useLook, useState } from "./base.js";
import { Ago, brief, countText, Difference, Failure, RunLink, words } from "./parts.js";
import { emptyOf, faultsIn, SchemaField, schemaOf } from "./schema_form.js";

/** The kind introduces each question: its text may imitate another kind. @type {Record<string, string>} */
export const TITLES = {
  question: "The agent asks",
  approval: "Approve a call",
  resume_unsafe: "A call may have happened",
  definition_changed: "The agent's definition has changed",
  thrash: "The agent goes in circles",
  recovery: "The agent loses context",
  choice: "An input has to be chosen",
  project: "The project asks",
  input: "The server of a tool asks",
};
/** @type {Record<string, string>} */
const LABELS = { approve_tool: "approve for this run" };
const TAKE_TEXT = ["question", "thrash", "recovery", "resume_unsafe", "approval", "project"];
const FILES = "image/png,image/jpeg,image/webp,image/gif,application/pdf";

/**
 * Store files and return them as attachments. Raises Refused, with the file's name.
 * @param {Iterable<File>} files
 */
export async function uploadAll(files) {
  const attachments = [];
  for (const file of files) {
    const path = `v1/files?name=${encodeURIComponent(file.name.slice(-200))}`;
    try {
      const { name, media_type, sha256 } = await request(path, { method: "POST", file });
      attachments.push({ name, media_type, sha256 });
    } catch (error) {
      throw new Error(`${file.name}: ${/** @type {Error} */ (error).message}`);
    }
  }
  return attachments;
}

/** @param {{ files: File[], setFiles: (files: File[]) => void, label: string }} props */
export function FileField({ files, setFiles, label }) {
  return html`<span class="attach">
    <label class="button"
      >attach files<input
        type="file"
        name="attached"
        multiple
        accept=${FILES}
        aria-label=${label}
        onChange=${(/** @type {any} */ it) => {
          setFiles([...files, ...it.target.files]);
          it.target.value = "";
        }}
    /></label>
    ${files.map(
      (file, n) =>
        html`<button type="button" class="plain" title="remove" onClick=${() => setFiles(files.filter((_, m) => m !== n))}>
          ✕ ${file.name}
        </button>`,
    )}
  </span>`;
}

/**
 * A question with its run, and the form that answers it.
 * @param {{ asked: any, tools?: Map<string, any>, chosen?: boolean, choose?: (on: boolean) => void, canAnswer: boolean, withRun?: boolean, onDone?: (text: string) => void }} props
 */
export function QuestionCard({ asked, tools, chosen, choose, canAnswer, withRun = true, onDone }) {
  const { run_id: runId, question } = asked;
  return html`<article class="card question" aria-label=${`${TITLES[question?.kind] ?? "Waits"}: ${runId}`}>
    <header>
      ${
        choose &&
        html`<input
        type="checkbox"
        name="chosen"
        aria-label=${`choose ${question.tool} of ${runId}`}
        checked=${chosen}
        onChange=${(/** @type {any} */ it) => choose(it.target.checked)}
      />`
      }
      <h3>${question ? (TITLES[question.kind] ?? words(question.kind)) : asked.waiting_for}</h3>
      <${Since} question=${question} asked=${asked} />
    </header>
    ${
      withRun &&
      (question?.kind === "project"
        ? html`<p class="about">${countText(asked.runs ?? 0, "run")} asked for it · <code>${runId}</code></p>`
        : html`<p class="about"><${RunLink} id=${runId} /> · ${asked.agent}${asked.goal && html` · ${brief(asked.goal, 200)}`}</p>`)
    }
    ${
      question
        ? html`<${About} question=${question} />
          <${Terms} question=${question} />
          ${withRun && !runId.startsWith("wf:") && question.kind !== "project" && html`<${Before} runId=${runId} />`}
          ${canAnswer && html`<${AnswerForm} key=${question.call ?? ""} ...${{ runId, question, tools, onDone }} />`}`
        : html`<p class="quiet">No worker answers now, so the question itself is not known.</p>`
    }
  </article>`;
}

/** @param {{ question: any, asked: any }} props */
function Since({ question, asked }) {
  return html`<span class="since"
    ><${Ago} at=${question?.asked_at ?? asked.started_at} />${
      question?.expires_at && html`, <strong>expires <${Ago} at=${question.expires_at} /></strong>`
    }</span
  >`;
}

/** What is asked. A call to approve has all of its arguments. @param {{ question: any }} props */
export function About({ question }) {
  if (question.kind !== "approval" || !question.arguments) {
    return html`<pre class="asks" tabindex="0" aria-label="question">${question.text}</pre>`;
  }
  const rule = question.text.match(/\n\n((?:The rule that|The tool's own approval)[^\n]*)$/)?.[1];
  return html`<p class="call"><code>${question.tool}</code>${question.step ? html` <small>step ${question.step}</small>` : null}</p>
    <${Arguments} args=${question.arguments} />
    ${rule && html`<p class="rule">${rule}</p>`}
    <details>
      <summary>exactly as the run asks${question.revision ? `, changed ${countText(question.revision, "time")}` : ""}</summary>
      <pre tabindex="0" aria-label="the call as the run asks">${question.text}</pre>
      <p class="quiet">call ${question.call}</p>
    </details>`;
}

const OLD = ["old_string", "old_text", "old", "before", "search"];
const NEW = ["new_string", "new_text", "new", "after", "replace"];
const LETTER = ["body", "text", "message", "content"];

/** The arguments of a call: a mail like a mail, an edit as a difference, others as fields. @param {{ args: any }} props */
export function Arguments({ args }) {
  const textAt = (/** @type {string[]} */ names) =>
    names.find((name) => typeof args[name] === "string");
  const [old, now, letter] = [textAt(OLD), textAt(NEW), textAt(LETTER)];
  const except = (/** @type {(string | undefined)[]} */ ...names) =>
    Object.fromEntries(Object.entries(args).filter(([name]) => !names.includes(name)));
  if (old && now) {
    return html`<${WholeValue} value=${except(old, now)} />
      <${Difference} before=${args[old]} after=${args[now]} />`;
  }
  if (letter && ("to" in args || "subject" in args)) {
    return html`<div class="letter">
      <${WholeValue} value=${except(letter)} />
      <div class="body" tabindex="0" role="region" aria-label=${letter}>${args[letter]}</div>
    </div>`;
  }
  return html`<${WholeValue} value=${args} />`;
}

/** @param {any} field */
const isShort = (field) =>
  typeof field !== "object" && !String(field).includes("\n") && String(field).length <= 120;

/** All of a value, folded nowhere: whoever approves a call has seen it. @param {{ value: any }} props */
function WholeValue({ value }) {
  const entries = Object.entries(value);
  if (!entries.length) return html`<p class="quiet">no arguments</p>`;
  return html`<dl class="fields">
    ${entries.map(
      ([name, field]) =>
        html`<dt>${words(name)}</dt>
          <dd>
            ${
              isShort(field)
                ? html`<span>${String(field)}</span>`
                : html`<pre tabindex="0" aria-label=${words(name)}>${typeof field === "string" ? field : JSON.stringify(field, null, 2)}</pre>`
            }
          </dd>`,
    )}
  </dl>`;
}

/** Who must approve, and who has. @param {{ question: any }} props */
function Terms({ question }) {
  if (!question.terms?.length) return null;
  return html`<ul class="terms">
    ${question.terms.map((/** @type {any} */ terms) => {
      const votes = terms.approved_by?.length ?? 0;
      const who = terms.approvers?.length ? `of ${terms.approvers.join(" or ")}` : "of anyone";
      if (question.kind === "project") return html`<li>for a member ${who}</li>`;
      return html`<li>
        ${votes} of ${countText(terms.quorum ?? 1, "approval")} ${who}${votes > 0 && `: ${terms.approved_by.join(", ")}`}
        ${terms.not_by?.length > 0 && html` <span class="quiet">not by ${terms.not_by.join(", ")}, whose request it is</span>`}
      </li>`;
    })}
  </ul>`;
}

/** What the run did before, on demand: a worker is asked for it. @param {{ runId: string }} props */
function Before({ runId }) {
  const [isOpen, setOpen] = useState(false);
  const { value, error } = useLook(isOpen ? runPath(runId) : null, { once: true });
  const state = value?.state;
  const lines = state && [
    `${countText(state.completed_steps.length, "step")} done, ${countText(state.turns, "model turn")}`,
    state.plan && `plan: ${brief(state.plan, 240)}`,
    state.last_finding && `last finding: ${brief(state.last_finding, 240)}`,
  ];
  return html`<details onToggle=${(/** @type {any} */ it) => setOpen(it.target.open)}>
    <summary>what it did before</summary>
    ${lines ? html`<ul>${lines.filter(Boolean).map((/** @type {string} */ line) => html`<li>${line}</li>`)}</ul>` : html`<p class="quiet">${value ? "no worker answers now" : "…"}</p>`}
    <${Failure} text=${error?.message} />
  </details>`;
}

/** @param {{ runId: string, question: any, tools?: Map<string, any>, onDone?: (text: string) => void }} props */
function AnswerForm({ runId, question, tools, onDone }) {
  const [text, setText] = useState("");
  const [files, setFiles] = useState(/** @type {File[]} */ ([]));
  const [edited, setEdited] = useState(/** @type {any} */ (null));
  const form = question.form ? withChoices(question.form) : null;
  const [filled, setFilled] = useState(/** @type {any} */ (form && emptyOf(form)));
  const { busy, error, act } = useAction();
  const missing = form ? faultsIn(form, filled) : [];
  const isApproval = question.kind === "approval" && question.arguments;
  const isTextual = question.kind === "question" || question.kind === "choice";
  const isProject = question.kind === "project";
  const note = isApproval ? "reason" : isProject ? "remark" : undefined;
  const schema = tools?.get(question.tool)?.input_schema ?? schemaOf(question.arguments ?? {});
  const faults = edited === null ? [] : faultsIn(schema, edited);
  const send = (/** @type {any} */ answer) =>
    act(async () => {
      if (files.length) answer.attachments = await uploadAll(files);
      await request(runPath(runId, "/answer"), { body: { ...namedIn(question), ...answer } });
      onDone?.(
        `${runId}: ${question.tool ? `${question.tool} ` : ""}${answer.option ?? words(answer.decision ?? "answered")}`,
      );
      lookAgain();
    });
  const decide = (/** @type {string} */ option) =>
    send({
      decision: option,
      ...(text.trim() ? { text: text.trim() } : {}),
      ...(edited !== null && option === "approve" ? { arguments: edited } : {}),
    });
  /** Go where a person settles the matter, such as a login. */
  const follow = () =>
    act(async () => {
      const { url } = await request(question.link, { method: "POST" });
      if (!/^https?:/.test(url)) throw new Error("the address is no web page");
      location.assign(url);
    });
  const choose = (/** @type {string} */ option) =>
    send({ option, ...(text.trim() ? { text: text.trim() } : {}) });
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    if (isProject || question.kind === "approval" || question.kind === "resume_unsafe") return; // by a button only, not by Enter
    if (form) send({ text: JSON.stringify(filled) });
    else if (text.trim() || files.length) send(text.trim() ? { text: text.trim() } : {});
  };
  return html`<form class="answer" onSubmit=${submit}>
    ${
      isApproval &&
      edited === null &&
      html`<button type="button" class="plain" onClick=${() => setEdited(question.arguments)}>change the arguments</button>`
    }
    ${
      edited !== null &&
      html`<${SchemaField} schema=${{ ...schema, type: "object", title: "changed arguments" }} value=${edited} onChange=${setEdited} path=${`${runId}-${question.id}`} />
      <ul class="faults" role="status">${faults.map((fault) => html`<li>${fault}</li>`)}</ul>
      <button type="button" class="plain" onClick=${() => setEdited(null)}>leave the arguments as they are</button>`
    }
    ${
      form &&
      html`<${SchemaField} schema=${{ ...form, title: "your answer" }} value=${filled} onChange=${setFilled} path=${`${runId}-${question.id}`} />
      <ul class="faults" role="status">${missing.map((fault) => html`<li>${fault}</li>`)}</ul>`
    }
    ${
      TAKE_TEXT.includes(question.kind) &&
      html`<input
      name="text"
      autocomplete="off"
      aria-label=${note ?? "answer"}
      placeholder=${note ? `a ${note} (optional)` : "your answer"}
      value=${text}
      onInput=${(/** @type {any} */ it) => setText(it.target.value)}
    />`
    }
    <span class="decisions">
      ${
        question.link &&
        html`<button type="button" class="first" data-option="link" disabled=${busy} onClick=${follow}>go there</button>`
      }
      ${question.options.map((/** @type {string} */ option) => {
        const isFirst = option === "approve";
        const label = LABELS[option] ?? (isTextual || isProject ? option : words(option));
        const act = () =>
          isProject ? choose(option) : isTextual ? send({ text: option }) : decide(option);
        return html`<button
          type="button"
          data-option=${option}
          class=${isFirst ? "first" : ""}
          disabled=${busy || (isFirst && faults.length > 0)}
          onClick=${act}
        >
          ${edited !== null && isFirst ? "approve as changed" : label}
        </button>`;
      })}
      ${
        (question.kind === "question" || ["thrash", "recovery"].includes(question.kind)) &&
        html`<button class=${question.options.length ? "" : "first"} disabled=${busy}>Answer</button>`
      }
      ${form && html`<button class="first" disabled=${busy || missing.length > 0}>Answer</button>`}
    </span>
    ${
      question.kind === "question" &&
      !runId.startsWith("wf:") &&
      html`<${FileField} files=${files} setFiles=${setFiles} label=${`Attach images and PDF to the answer for ${runId}`} />`
    }
    <${Failure} text=${error} />
  </form>`;
}

/** The schema with each choice of MCP, a list of constants with titles, as one of JSON Schema. @param {any} schema @returns {any} */
function withChoices(schema) {
  const { oneOf, anyOf, ...own } = schema;
  const listed = oneOf ?? anyOf;
  if (listed) return { ...own, enum: listed.map((/** @type {any} */ each) => each.const) };
  if (own.items) own.items = withChoices(own.items);
  if (own.properties)
    own.properties = Object.fromEntries(
      Object.entries(own.properties).map(([name, field]) => [name, withChoices(field)]),
    );
  return own;
}

/** The question and its call, with the text that the card shows. @param {any} question */
const namedIn = ({ id, call, text }) => ({
  question_id: id,
  ...(call ? { call, shown: text } : {}),
});

/**
 * Questions as a list, of which several calls are decided at once.
 * @param {{ questions: any[], tools?: Map<string, any>, canAnswer: boolean, withRun?: boolean }} props
 */
export function QuestionList({ questions, tools, canAnswer, withRun = true }) {
  const [chosen, setChosen] = useState(/** @type {Set<string>} */ (new Set()));
  const [done, setDone] = useState("");
  const { busy, error, act } = useAction();
  const keyOf = (/** @type {any} */ asked) =>
    `${asked.run_id} ${asked.question?.id} ${asked.question?.call ?? ""}`;
  const calls = questions.filter(({ question }) => question?.kind === "approval" && question.call);
  const picked = calls.filter((asked) => chosen.has(keyOf(asked)));
  const decideAll = (/** @type {string} */ decision) =>
    act(async () => {
      /** @type {Map<string, any[]>} */ const byRun = new Map();
      for (const { run_id, question } of picked) {
        byRun.set(run_id, [...(byRun.get(run_id) ?? []), { ...namedIn(question), decision }]);
      }
      const reasons = [];
      for (const [runId, answers] of byRun) {
        const { results } = await request(runPath(runId, "/answers"), { body: { answers } });
        reasons.push(
          ...results
            .filter((/** @type {any} */ it) => !it.accepted)
            .map((/** @type {any} */ it) => `${runId} ${it.question_id}: ${it.reason}`),
        );
      }
      setChosen(new Set());
      setDone(`${countText(picked.length - reasons.length, "call")}: ${words(decision)}`);
      lookAgain();
      if (reasons.length) throw new Error(reasons.join("; "));
    });
  return html`<div class="questions">
    ${
      canAnswer &&
      calls.length > 1 &&
      html`<p class="chosen-bar">
      <span>${picked.length} of ${countText(calls.length, "call")} chosen</span>
      ${["approve", "deny"].map(
        (decision) =>
          html`<button type="button" data-chosen=${decision} disabled=${busy || !picked.length} onClick=${() => decideAll(decision)}>
            ${decision} chosen
          </button>`,
      )}
    </p>`
    }
    <p class="done" role="status">${done}</p>
    <${Failure} text=${error} />
    ${questions.map((asked) => {
      const key = keyOf(asked);
      const choose = (/** @type {boolean} */ on) =>
        setChosen(new Set(on ? [...chosen, key] : [...chosen].filter((each) => each !== key)));
      return html`<${QuestionCard}
        key=${`${asked.run_id} ${asked.question?.id}`}
        ...${{ asked, tools, canAnswer, withRun }}
        chosen=${chosen.has(key)}
        choose=${canAnswer && calls.length > 1 && calls.includes(asked) ? choose : undefined}
        onDone=${setDone}
      />`;
    })}
  </div>`;
}
