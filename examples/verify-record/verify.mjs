// Checks signed records of Perdure with nothing but Node: node verify.mjs [--key PUBLIC.pem] FILE...
// It says the same as `perdure verify`. docs/record.md describes the format.
import { createHash, createPublicKey, verify } from "node:crypto";
import { readFileSync } from "node:fs";

const NO_HASH = "0".repeat(64), FORMAT = "perdure.record.1";
const NOT_CANONICAL = "not a JSON object in its canonical form";

// RFC 8785: names in the order of their UTF-16 units, numbers and texts as JSON.stringify writes them.
const canonical = (value) =>
  value === null || typeof value !== "object" ? JSON.stringify(value)
  : Array.isArray(value) ? `[${value.map(canonical)}]`
  : `{${Object.keys(value).sort().map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`)}}`;
const sha256 = (text) => createHash("sha256").update(text).digest("hex");
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const hasNames = (value, required, optional = []) =>
  required.every((name) => name in value) && Object.keys(value).every((name) => [...required, ...optional].includes(name));
const isNumber = (value) => Number.isSafeInteger(value) && value >= 1;
const isHash = (value) => typeof value === "string" && /^[0-9a-f]{64}$/.test(value);
const isEvent = (line) =>
  hasNames(line, ["seq", "prev", "event", "hash"], ["texts"]) && isNumber(line.seq) && isHash(line.prev) &&
  isHash(line.hash) && isObject(line.event) && isObject(line.texts ?? {}) &&
  Object.values(line.texts ?? {}).every((text) => isObject(text) && hasNames(text, ["salt", "text"]) &&
    typeof text.text === "string" && typeof text.salt === "string" && /^[0-9a-f]{32}$/.test(text.salt));
const isSignature = (line) =>
  hasNames(line, ["format", "count", "last", "key", "sig"], ["timestamp"]) && line.format === FORMAT && isNumber(line.count) &&
  isHash(line.last) && [line.key, line.sig, line.timestamp ?? ""].every((text) => typeof text === "string");

function parse(bytes) {
  let line;
  try {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    line = JSON.parse(text);
    if (!isObject(line) || canonical(line) !== text) return NOT_CANONICAL;
  } catch { return NOT_CANONICAL; }
  return ("format" in line ? isSignature : isEvent)(line) ? line : "not an event, and not a signature of this format";
}
// The y of the points of small order, without the sign of x: anyone can invent signatures of these keys.
const PRIME = 2n ** 255n - 19n, ORDER_8 = 0x7a03ac9277fdc74ec6cc392cfa53202a0f67100d760b3cba4fd83d3d706a17c7n;
const SMALL_ORDER = [0n, 1n, PRIME - 1n, ORDER_8, PRIME - ORDER_8];
const yOf = (key) => BigInt.asUintN(255, BigInt(`0x0${Buffer.from(key).reverse().toString("hex")}`)) % PRIME;
function isSigned({ sig, timestamp, ...head }) { // the time stamp is not checked here: openssl ts -verify does it
  try {
    const x = Buffer.from(head.key, "base64"), signature = Buffer.from(sig, "base64");
    if (x.toString("base64") !== head.key || signature.toString("base64") !== sig || SMALL_ORDER.includes(yOf(x))) return false;
    const key = createPublicKey({ key: { kty: "OKP", crv: "Ed25519", x: x.toString("base64url") }, format: "jwk" });
    return verify(null, Buffer.from(canonical(head)), key, signature);
  } catch { return false; }
}

function check(data, expectedKey) {
  const findings = [], order = [], events = new Map([[0, { hash: NO_HASH }]]);
  const lines = data.toString("latin1").split("\n").map((line) => Buffer.from(line, "latin1"));
  if (lines.at(-1).length === 0) lines.pop();
  else findings.push(`line ${lines.length} does not end with a line feed`);
  let head, erased = 0, before = 0;
  for (const [index, bytes] of lines.entries()) {
    const line = parse(bytes);
    if (typeof line === "string") findings.push(`line ${index + 1}: ${line}`);
    else if (head) findings.push(`line ${index + 1} stands after the signature`);
    else if ("format" in line) head = line;
    else {
      const { seq, prev, event, hash, texts = {} } = line;
      const sealed = isObject(event.sealed) ? event.sealed : {};
      if (sha256(canonical({ seq, prev, event })) !== hash) findings.push(`event ${seq} was changed`);
      else {
        for (const [name, { salt, text }] of Object.entries(texts))
          if (sha256(salt + text) !== sealed[name]) findings.push(`event ${seq}: the text ${name} was changed`);
        erased += Object.keys(sealed).filter((name) => !Object.hasOwn(texts, name)).length;
      }
      if (events.has(seq)) findings.push(`event ${seq} stands twice`);
      order.push(seq), events.set(seq, line);
    }
  }
  const sorted = [...order].sort((one, other) => one - other);
  for (const seq of new Set(sorted)) {
    if (seq > before + 1) findings.push(`events ${before + 1} to ${seq - 1} are missing`);
    else if (events.get(seq).prev !== events.get(before).hash) findings.push(`event ${seq} does not follow event ${before}`);
    before = seq;
  }
  order.forEach((seq, index) => { if (seq !== sorted[index]) findings.push(`event ${seq} is not in its place`); });
  if (!head) findings.push(`the signature is missing: the record ends at event ${before}`);
  else {
    if (head.count !== before) findings.push(`the record ends at event ${before}, and ${head.count} events are signed`);
    else if (head.last !== events.get(before).hash) findings.push(`event ${before} is not the last one that was signed`);
    if (!isSigned(head)) findings.push("the signature is not valid");
    if (expectedKey && head.key !== expectedKey) findings.push(`signed with another key: ${head.key}`);
  }
  return { findings, count: order.length, erased };
}
const [option, keyFile, ...rest] = process.argv.slice(2);
const files = option === "--key" ? rest : process.argv.slice(2);
const jwk = option === "--key" && createPublicKey(readFileSync(keyFile)).export({ format: "jwk" });
const key = jwk && Buffer.from(jwk.x, "base64url").toString("base64");
for (const file of files) {
  const { findings, count, erased } = check(readFileSync(file), key);
  for (const finding of findings) console.log(`${file}: ${finding}`);
  console.log(`${file}: ${findings.length ? "does not hold" : "holds"}: ${count} events, ${erased} texts erased`);
  if (findings.length) process.exitCode = 1;
}
