// The npm SDK `@agentclientprotocol/sdk` as a client that a test drives.
//
//     node editor_client.mjs 1|2 stdio COMMAND...
//     node editor_client.mjs 1|2 http|ws URL
//
// Lines of JSON-RPC come in on stdin and go out on stdout, as if the test were the client itself; in between, each
// goes through the SDK: its handlers, its schemas in both directions, its transports.
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { Readable, Writable } from "node:stream";
import * as v1 from "@agentclientprotocol/sdk";
import * as v2 from "@agentclientprotocol/sdk/experimental/v2";
import { createHttpStream } from "@agentclientprotocol/sdk/experimental/http-client";
import { createWebSocketStream } from "@agentclientprotocol/sdk/experimental/ws-client";
import { WebSocket } from "ws";

const [version, kind, ...where] = process.argv.slice(2);
const acp = version === "2" ? v2 : v1;

const V1_ONLY = ["fs/read_text_file", "fs/write_text_file", "terminal/create", "terminal/output",
  "terminal/wait_for_exit", "terminal/kill", "terminal/release"];
const ASKED = ["session/request_permission", "elicitation/create", ...(version === "2" ? [] : V1_ONLY)];

const write = (message) => process.stdout.write(JSON.stringify({ jsonrpc: "2.0", ...message }) + "\n");
const answers = new Map();
let count = 0;

function ask(method, params, signal) {
  const id = `asked-${count++}`;
  write({ id, method, params });
  // The agent takes back what it has asked: the test hears of it as it would on the wire.
  signal?.addEventListener("abort", () => write({ method: "$/cancel_request", params: { requestId: id } }));
  return new Promise((resolve, reject) => answers.set(id, { resolve, reject }));
}

function answered(message) {
  const { resolve, reject } = answers.get(message.id);
  answers.delete(message.id);
  if (message.error) reject(new acp.RequestError(message.error.code, message.error.message, message.error.data));
  else resolve(message.result);
}

let child;
function stream() {
  if (kind === "http") return createHttpStream(where[0]);
  if (kind === "ws") return createWebSocketStream(where[0], { WebSocket });
  child = spawn(where[0], where.slice(1), { stdio: ["pipe", "pipe", "inherit"] });
  return acp.ndJsonStream(Writable.toWeb(child.stdin), Readable.toWeb(child.stdout));
}

const app = acp.client({ name: "interop" });
for (const method of ASKED) app.onRequest(method, (context) => ask(method, context.params, context.signal));
for (const method of ["session/update", "elicitation/complete"])
  app.onNotification(method, (context) => write({ method, params: context.params }));

await app.connectWith(stream(), async (context) => {
  const work = new Set();
  for await (const line of createInterface({ input: process.stdin })) {
    const message = JSON.parse(line);
    if (!message.method) {
      answered(message);
      continue;
    }
    if (message.id === undefined) {
      await context.notify(message.method, message.params);
      continue;
    }
    // Seen on 2.4.0: an answer overtakes the notifications right before it, whose handlers run some microtasks later.
    const one = context.request(message.method, message.params).then(
      (result) => setImmediate(() => write({ id: message.id, result: result ?? {} })),
      ({ code, message: text, data }) =>
        setImmediate(() => write({ id: message.id, error: { code: code ?? -1, message: String(text), data } })),
    );
    work.add(one);
    one.finally(() => work.delete(one));
  }
});
if (child) {
  child.stdin.end();
  const ended = child.exitCode !== null ? child.exitCode : await new Promise((resolve) => child.on("exit", resolve));
  process.exit(ended === 0 ? 0 : 70);
}
process.exit(0);
