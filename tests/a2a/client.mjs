// The client of @a2a-js/sdk. It makes one call, and prints each answer as a line of JSON.
// node client.mjs URL TOKEN METHOD ARGUMENTS; with METHOD "sendMessageStream" or "resubscribeTask" there are many answers.
import { ClientFactory, DefaultAgentCardResolver, JsonRpcTransportFactory } from "@a2a-js/sdk/client";

const [, , url, token, method, text] = process.argv;
const fetchImpl = (address, init = {}) => {
  const headers = new Headers(init.headers);
  headers.set("Authorization", `Bearer ${token}`);
  return fetch(address, { ...init, headers });
};
const factory = new ClientFactory({
  transports: [new JsonRpcTransportFactory({ fetchImpl })],
  cardResolver: new DefaultAgentCardResolver({ fetchImpl }),
});
try {
  const client = await factory.createFromUrl(`${url}/`, ".well-known/agent-card.json");
  const answer = client[method](JSON.parse(text));
  if (answer[Symbol.asyncIterator]) for await (const event of answer) console.log(JSON.stringify(event));
  else console.log(JSON.stringify(await answer));
} catch (error) {
  console.log(JSON.stringify({ error: error.constructor.name, message: error.message }));
}
