import { Chat, useChat } from "@ai-sdk/react";
import { DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } from "ai";
import { useState } from "react";
import { createRoot } from "react-dom/client";
import { useReconnect } from "./reconnect.js";

const api = "/v1/ui/chat";
const id = (location.hash ||= `#${crypto.randomUUID()}`).slice(1); // the chat: whoever signs in, it is theirs alone
const onlyLast = ({ id, messages }) => ({ body: { id, messages: messages.slice(-1) } }); // no other one is read
const transport = new DefaultChatTransport({ api, prepareSendMessagesRequest: onlyLast });
const sendAutomaticallyWhen = lastAssistantMessageIsCompleteWithApprovalResponses;
let notify = () => {};
const onData = (part) => part.type === "data-notice" && notify(part.data.text);
// One of our own: `useChat` of @ai-sdk/react 3 hides from its own that a resumed stream begins at the beginning.
const chat = new Chat({ id, transport, sendAutomaticallyWhen, onData, onFinish: () => notify("") });
const ask = (path, body) =>
  fetch(`/v1/runs/${path}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

function Call({ part, decide }) {
  const asks = part.state === "approval-requested";
  return (
    <div className="call">
      <code>{part.toolName} {JSON.stringify(part.input)}</code> <i>{part.state}</i>
      {part.output !== undefined && <pre>{JSON.stringify(part.output)}</pre>}
      {part.errorText && <pre>{part.errorText}</pre>}
      {asks && <button onClick={() => decide({ id: part.approval.id, approved: true })}>approve</button>}
      {asks && <button onClick={() => decide({ id: part.approval.id, approved: false })}>deny</button>}
    </div>
  );
}

function Question({ data, goOn }) {
  if (data.kind === "approval") return null; // its call has the buttons
  if (data.status !== "open") return <div className="question">{data.text} – {data.answer?.text ?? data.answer?.decision ?? data.status}</div>;
  const answer = async (said) => {
    const field = ["question", "choice"].includes(data.kind) ? "text" : "decision";
    const answered = await ask(`${encodeURIComponent(data.runId)}/answer`, { question_id: data.id, [field]: said });
    if (answered.ok) goOn();
  };
  return (
    <form className="question" onSubmit={(event) => (event.preventDefault(), answer(event.target.said.value))}>
      {data.text} {data.options.map((each) => <button type="button" key={each} onClick={() => answer(each)}>{each}</button>)}
      {data.options.length === 0 && <input name="said" aria-label="answer" />}
    </form>
  );
}

function Part({ part, goOn }) {
  if (part.type === "text") return <p>{part.text}</p>;
  if (part.type === "reasoning") return <details><summary>reasoning</summary>{part.text}</details>;
  if (part.type === "dynamic-tool") return <Call part={part} decide={chat.addToolApprovalResponse} />;
  if (part.type === "data-question") return <Question data={part.data} goOn={goOn} />;
  if (part.type === "data-subtask") return <div>{part.data.agent}: {part.data.status}</div>;
  if (part.type === "source-url") return <a href={part.url} rel="noreferrer">{part.title}</a>;
  if (part.type === "file") return <a href={part.url} download>{part.filename ?? part.url.split("/").at(-1)}</a>;
  return null;
}

function Page() {
  const [notice, setNotice] = useState("");
  const [text, setText] = useState("");
  const { messages, status, error } = useChat({ chat });
  notify = setNotice;
  const goOn = useReconnect(chat, { messages, status, error }, api);
  const last = messages.at(-1)?.metadata;
  const runs = last?.status === "running" && last.runId;
  const send = (event) => (event.preventDefault(), setText(""), chat.sendMessage({ text }));
  return (
    <main>
      {messages.map((message) => (
        <article key={message.id} className={message.role}>
          {message.parts.map((part, at) => <Part key={at} part={part} goOn={goOn} />)}
          {message.metadata && <small>{message.metadata.status} {message.metadata.detail}</small>}
        </article>
      ))}
      <form onSubmit={send}>
        <input aria-label="message" value={text} onChange={(event) => setText(event.target.value)} />
        <button disabled={!text.trim()}>send</button>
        {runs && <button type="button" onClick={() => ask(`${encodeURIComponent(runs)}/cancel`, {})}>cancel</button>}
      </form>
      <footer>{status} {notice} {status === "error" && error?.message}</footer>
    </main>
  );
}

createRoot(document.getElementById("chat")).render(<Page />);
