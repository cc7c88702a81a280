// The agent of docs/ag-ui.md without a page. It reads a line of JSON for each thing to do, and answers with a line.
// node client.mjs URL TOKEN [stock]
import { createInterface } from "node:readline";
import { HttpAgent } from "@ag-ui/client";
import { DurableAgent } from "./durable.mjs";

const [, , url, token, stock] = process.argv;
console.error = () => {};

const threads = {};
const open = (threadId) => {
  const config = { url: `${url}/v1/ag-ui`, threadId, headers: { Authorization: `Bearer ${token}` } };
  const agent = stock ? new HttpAgent(config) : new DurableAgent(config);
  const thread = { agent, heard: [], status: "ready", error: undefined, result: undefined };
  agent.subscribe({
    onCustomEvent: ({ event }) => void thread.heard.push({ name: event.name, value: event.value }),
    onRunFinishedEvent: ({ event }) => void (thread.result = event.result),
    onRunErrorEvent: ({ event }) => void (thread.result = { status: event.code }),
  });
  return thread;
};
const follow = (thread, begin) => {
  Object.assign(thread, { status: "running", error: undefined, result: undefined });
  begin().then(
    () => (thread.status = "ready"),
    (error) => Object.assign(thread, { status: "error", error: error.message }),
  );
};
const DOES = {
  send: (thread, { text, id }) => {
    thread.agent.addMessage({ id: id ?? crypto.randomUUID(), role: "user", content: text });
    follow(thread, () => thread.agent.runAgent());
  },
  run: (thread, parameters) => follow(thread, () => thread.agent.runAgent(parameters.with)),
  connect: (thread) => follow(thread, () => thread.agent.connectAgent()),
  stop: (thread) => thread.agent.abortRun(),
  forget: (_, { chat }) => void (threads[chat] = open(chat)),
  show: () => {},
};

for await (const line of createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line);
  DOES[asked.do]((threads[asked.chat] ??= open(asked.chat)), asked);
  const { agent, ...thread } = threads[asked.chat];
  console.log(JSON.stringify({ ...thread, messages: agent.messages, pending: agent.pendingInterrupts ?? [] }));
}
