/** A conversation: its turns, the one that runs, and what is said next. */

import {
  html,
  lookAgain,
  request,
  useAction,
  useEffect,
  useLook,
  useRef,
  useState,
} from "./base.js";
import { useCourse } from "./course.js";
import { Ago, Failure, LongText, RunLink, Status, words } from "./parts.js";
import { FileField, QuestionList, uploadAll } from "./question.js";

/** @param {{ id: string, can: (scope: string) => boolean, tools: Map<string, any> }} props */
export function ConversationScreen({ id, can, tools }) {
  const path = `v1/conversations/${encodeURIComponent(id)}`;
  const { value: lane, error } = useLook(path);
  const isNew = error?.status === 404;
  return html`<section class="chat" aria-labelledby="chat-title">
    <h2 id="chat-title">${id}</h2>
    ${isNew ? html`<p class="quiet">This conversation is new: what you say begins it.</p>` : html`<${Failure} text=${error?.message} />`}
    ${lane && html`<p class="about">agent ${lane.agent ?? "default"}${lane.queued > 0 && `, ${lane.queued} of ${lane.most_queued} waiting`}</p>`}
    <ol class="turns">
      ${lane?.recent.map((/** @type {any} */ turn) => html`<li key=${turn.run_id}><${Ended} turn=${turn} /></li>`)}
    </ol>
    ${lane?.active && html`<${Active} key=${lane.active.run_id} active=${lane.active} ...${{ can, tools }} />`}
    ${
      lane?.waiting.length > 0 &&
      html`<ol class="turns waiting" aria-label="waiting requests">
      ${lane.waiting.map((/** @type {any} */ each) => html`<li key=${each.run_id}><p class="said">${each.asked}</p><p class="quiet">waits its turn</p></li>`)}
    </ol>`
    }
    ${can("runs:start") && html`<${Say} path=${path} busy=${Boolean(lane?.active)} can=${can} />`}
  </section>`;
}

/** @param {{ turn: any }} props */
function Ended({ turn }) {
  return html`<div class="turn">
    <p class="said">${turn.asked}</p>
    <div class="reply"><${LongText} text=${turn.said || words(turn.end)} label="answer" /></div>
    <p class="quiet">
      <${RunLink} id=${turn.run_id} /> <${Status} run=${{ status: turn.end }} /> <${Ago} at=${turn.at} />${turn.forgotten && " · left out of the conversation"}
    </p>
  </div>`;
}

/** The turn that runs, live. @param {{ active: any, can: (scope: string) => boolean, tools: Map<string, any> }} props */
function Active({ active, can, tools }) {
  const { course, lost } = useCourse(active.run_id);
  const waits = course.openWaits().filter((row) => row.question);
  const asked = waits.map((row) => ({
    run_id: active.run_id,
    agent: "",
    goal: null,
    question: row.question,
    started_at: active.at,
  }));
  const reply = course.said.findLast((each) => each.kind === "reply" && each.text);
  const doing = course.rows.filter((row) => row.end === null && row.kind !== "wait");
  useEffect(() => {
    if (course.end) lookAgain();
  }, [course.end]);
  return html`<div class="turn active">
    <p class="said">${course.started?.goal ?? active.asked}</p>
    <div class="reply">
      ${(course.live?.text || reply?.text) && html`<pre>${course.live?.text || reply?.text}</pre>`}
      <p class="quiet" role="status">${lost ? "the stream is broken; the page tries to go on" : doing.map((row) => `${row.name} ${row.note}`).join(", ")}</p>
    </div>
    ${asked.length > 0 && html`<${QuestionList} questions=${asked} tools=${tools} canAnswer=${can("human:answer")} withRun=${false} />`}
    <p class="quiet"><${RunLink} id=${active.run_id} /></p>
  </div>`;
}

/** @param {{ path: string, busy: boolean, can: (scope: string) => boolean }} props */
function Say({ path, busy, can }) {
  const [text, setText] = useState("");
  const [files, setFiles] = useState(/** @type {File[]} */ ([]));
  const [whenBusy, setWhenBusy] = useState("queue");
  const requestId = useRef("");
  const action = useAction();
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    requestId.current ||= `page-${crypto.getRandomValues(new Uint32Array(3)).join("-")}`; // what is sent again is one request
    action.act(async () => {
      const attachments = await uploadAll(files);
      const body = {
        request_id: requestId.current,
        goal: text.trim(),
        when_busy: busy ? whenBusy : "queue",
        ...(attachments.length ? { attachments } : {}),
      };
      await request(`${path}/requests`, { body });
      requestId.current = "";
      setText("");
      setFiles([]);
      lookAgain();
    });
  };
  const onKey = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && text.trim())
      submit(event);
  };
  return html`<form class="say" onSubmit=${submit}>
    <textarea rows="3" aria-label="message" placeholder="a message; Enter sends it" value=${text} onInput=${(/** @type {any} */ it) => setText(it.target.value)} onKeyDown=${onKey}></textarea>
    ${
      busy &&
      html`<select aria-label="while a turn runs" value=${whenBusy} onChange=${(/** @type {any} */ it) => setWhenBusy(it.target.value)}>
      <option value="queue">after this turn</option>
      <option value="steer">into this turn</option>
      ${can("human:answer") && html`<option value="interrupt">in place of this turn</option>`}
    </select>`
    }
    <${FileField} files=${files} setFiles=${setFiles} label="Attach images and PDF to the message" />
    <button class="first" disabled=${action.busy || !text.trim()}>Send</button>
    <${Failure} text=${action.error} />
  </form>`;
}
