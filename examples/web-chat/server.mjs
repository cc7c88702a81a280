// Serves the page, and passes its requests on to the gateway with the token, which the browser never has.
// TOKEN=pdr_… node server.mjs [PORT]
import { build } from "esbuild";
import { createServer, request } from "node:http";
import { fileURLToPath } from "node:url";

const gateway = new URL(process.env.GATEWAY ?? "http://127.0.0.1:8080");
const port = Number(process.argv[2] ?? 3000);
const html = `<!doctype html><meta charset="utf-8"><title>Chat</title><div id="chat"></div><script src="/page.js"></script>`;
const options = { bundle: true, write: false, jsx: "automatic", define: { "process.env.NODE_ENV": '"production"' } };
const built = await build({ ...options, entryPoints: [fileURLToPath(new URL("page.jsx", import.meta.url))] });
const page = built.outputFiles[0].text;
const PASSED = /^\/v1\/(ui\/chat|runs\/[^/]+\/(answer|cancel|artifacts|media))(\/|$)/; // of this gateway's routes, no other

function pass(asked, answer) {
  // A real server looks here who asks: a session of its own, and which chats and runs are theirs.
  const { host: _, authorization: __, cookie: ___, ...headers } = asked.headers;
  const authorization = `Bearer ${process.env.TOKEN}`;
  const onward = request(new URL(asked.url, gateway), { method: asked.method, headers: { ...headers, authorization } });
  onward.on("response", (got) => {
    answer.writeHead(got.statusCode, got.headers);
    got.on("error", () => answer.destroy()); // it broke off: the page must hear of it
    got.pipe(answer);
  });
  onward.on("error", () => (answer.headersSent ? answer.destroy() : answer.writeHead(502).end()));
  answer.on("close", () => onward.destroy());
  asked.pipe(onward);
}

createServer((asked, answer) => {
  if (PASSED.test(new URL(asked.url, gateway).pathname)) return pass(asked, answer);
  const isPage = asked.url === "/page.js";
  answer.writeHead(200, { "Content-Type": `text/${isPage ? "javascript" : "html"}; charset=utf-8` });
  answer.end(isPage ? page : html);
}).listen(port, "127.0.0.1", function () {
  console.log(`chat at http://127.0.0.1:${this.address().port}`);
});
