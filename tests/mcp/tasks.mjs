// The official client of MCP tasks. It prints a line of JSON for each thing that it sees.
// node tasks.mjs URL TOKEN start ARGUMENTS HOW, or resume TASK HOW; HOW is what a person does: answer:TEXT, decline,
// leave (the process ends), stop (of the whole task), or none, as there is no person.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { createTaskSessionFromClient } from "@modelcontextprotocol/ext-tasks/client";

const [, , url, token, verb, what, how] = process.argv;
const TASKS = "io.modelcontextprotocol/tasks";
const info = { name: "tests", version: "1" };
const capabilities = { elicitation: { form: {}, url: {} }, extensions: { [TASKS]: {} } };
const authorization = `Bearer ${token}`;
const tell = (line) => console.log(JSON.stringify(line));

const client = new Client(info, { capabilities, versionNegotiation: { mode: "auto" } });
const transport = new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers: { authorization } } });
await client.connect(transport);

let number = 1;
async function rawDispatch(request) {
  const headers = {
    authorization,
    "content-type": "application/json",
    accept: "application/json, text/event-stream",
    "mcp-protocol-version": "2026-07-28",
    "mcp-method": request.method,
    "mcp-name": request.params?.taskId ?? request.params?.name ?? "",
  };
  if (!headers["mcp-name"]) delete headers["mcp-name"];
  const body = JSON.stringify({ jsonrpc: "2.0", id: number++, ...request });
  const reply = await (await fetch(url, { method: "POST", headers, body })).json();
  if (request.method !== "tasks/get") tell({ sent: request.method });
  return reply.error ? { kind: "error", error: reply.error } : { kind: "result", result: reply.result };
}

async function respond(request) {
  tell({ asked: request.params });
  if (how === "leave") process.exit(0); // between two polls
  if (how === "stop") await execution.cancel();
  if (how === "stop") return { action: "cancel" };
  if (request.params.mode === "url") return { action: "accept" }; // the person has opened it
  return how === "decline" ? { action: "decline" } : { action: "accept", content: { answer: how.slice(7) } };
}

const session = createTaskSessionFromClient(client, {
  endpointId: "perdure",
  rawDispatch,
  v2RequestFraming: { protocolVersion: "2026-07-28", clientInfo: info, clientCapabilities: capabilities },
  ...(how !== "none" && { onInputRequest: respond }),
});
const reference = { endpointId: "perdure", generation: "v2", taskId: what, originalOperation: "tools/call" };
const execution =
  verb === "start" ? await session.callTool("start_run", JSON.parse(what)) : await session.resumeTask(reference);
tell({ kind: execution.kind, task: execution.handle?.taskId });
const { outcome } = await execution.settle();
tell({ outcome });
await session.close();
await client.close();
