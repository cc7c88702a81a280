// The worker of ../warehouse.py for Node.js: npm install, then npm start.

const { appendFileSync } = require("node:fs");
const { ApplicationFailure, heartbeat, sleep } = require("@temporalio/activity");
const { NativeConnection, Worker } = require("@temporalio/worker");

const STOCK = { milk: 12, salt: 3 };
const SECONDS = Number(process.env.WORK_SECONDS ?? 2); // that each call takes

// The request is the `agentic.tool_request.look_up_stock` event, the result any JSON value.
async function look_up_stock(request) {
  const { item } = request.payload.tool_payload;
  if (!Object.hasOwn(STOCK, item)) {
    // The arguments are a model's: what is wrong with them is reported to it.
    throw ApplicationFailure.nonRetryable(`there is no '${item}' here; there is: ${Object.keys(STOCK).join(", ")}`);
  }
  await work();
  return { item, left: STOCK[item] };
}

// The dedupe key is the same on every attempt of the call: whoever keeps it can tell a repeat.
async function place_order(request) {
  const order = { key: request.dedupe_key, ...request.payload.tool_payload };
  appendFileSync("orders.jsonl", JSON.stringify(order) + "\n");
  await work();
  return { ordered: order };
}

// Each beat says that this worker is alive, and lets a cancel in.
async function work() {
  for (let n = 0; n < SECONDS * 2; n++) {
    heartbeat();
    await sleep(500);
  }
}

async function main() {
  const connection = await NativeConnection.connect({ address: process.env.TEMPORAL_ADDRESS ?? "localhost:7233" });
  const activities = { look_up_stock, place_order };
  const worker = await Worker.create({ connection, taskQueue: "warehouse", activities });
  console.log("the warehouse is open");
  await worker.run();
}

main().catch((error) => {
  console.error(`warehouse: ${error.message}`);
  process.exit(1);
});
