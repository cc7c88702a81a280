// The client of the AI SDK without React. It reads a line of JSON for each thing to do, and answers with a line.
// node client.mjs PACKAGE URL TOKEN
import { createInterface } from "node:readline";

const [, , name, url, token] = process.argv;
const { AbstractChat, DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } = await import(name);
console.error = () => {};

class State {
  status = "ready";
  error;
  messages = [];
  pushMessage = (message) => void (this.messages = [...this.messages, message]);
  popMessage = () => void (this.messages = this.messages.slice(0, -1));
  replaceMessage = (at, message) =>
    void (this.messages = this.messages.map((each, place) => (place === at ? structuredClone(message) : each)));
  snapshot = (value) => structuredClone(value);
}

class Chat extends AbstractChat {
  heard = []; // transient parts
  constructor(id) {
    const headers = { Authorization: `Bearer ${token}` };
    super({
      id,
      state: new State(),
      transport: new DefaultChatTransport({ api: `${url}/v1/ui/chat`, headers }),
      sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
      onError: () => {},
      onData: (part) => part.transient && this.heard.push(part.data),
    });
  }
}

const chats = {};
const DOES = {
  send: (chat, { text }) => void chat.sendMessage({ text }),
  decide: (chat, { id, approved, reason }) => void chat.addToolApprovalResponse({ id, approved, reason }),
  resume: async (chat) => {
    const begun = performance.now();
    await chat.resumeStream();
    chat.took = performance.now() - begun; // milliseconds
  },
  again: (chat) => void chat.regenerate(),
  stop: (chat) => void chat.stop(),
  forget: (_, { chat }) => void (chats[chat] = new Chat(chat)),
  put: (chat, { messages }) => void (chat.messages = messages),
  show: () => {},
};

for await (const line of createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line);
  DOES[asked.do]((chats[asked.chat] ??= new Chat(asked.chat)), asked);
  const chat = chats[asked.chat];
  const { status, messages, heard, took } = chat;
  console.log(JSON.stringify({ status, messages, heard, took, error: chat.error?.message }));
}
